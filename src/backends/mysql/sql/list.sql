-- Every held lock whose name has this start, by bytes.
SELECT :record FROM :table AS l WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start
  AND l.mode IS NULL AND lock_until > UTC_TIMESTAMP(6)
   AND NOT (:of_dlock AND document IS NULL) ORDER BY name;
