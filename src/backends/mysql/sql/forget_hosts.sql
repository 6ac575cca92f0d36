-- Forgets the hosts beyond the limit whose last skip is longest ago.
DELETE FROM :skips
 WHERE name = :name
   AND last <= (SELECT last FROM (SELECT last FROM :skips WHERE name = :name ORDER BY last DESC
     LIMIT 1 OFFSET :most) AS beyond);
