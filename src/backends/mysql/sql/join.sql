-- Puts a waiter into the queue, or confirms its entry, while another client holds the lock and the
-- row has no document. The queue only informs: no grant depends on it.
INSERT INTO :waiters (name, hold, since, seen, metadata)
SELECT :name, :root, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :metadata FROM DUAL
 WHERE :leased = 0 OR EXISTS (SELECT 1 FROM :table AS l WHERE l.name = :name AND l.lock_until
   > UTC_TIMESTAMP(6) AND l.locked_by <> :owner
              AND l.locked_by <> :shared AND COALESCE(l.document NOT LIKE '%"q":[%', 1)
                AND NOT (:of_dlock AND l.document IS NULL))
    ON DUPLICATE KEY UPDATE seen = UTC_TIMESTAMP(6);
