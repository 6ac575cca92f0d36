-- Remembers the hold that was just freed. Now and then all but the last hundred go, and all but the last hundred of those that
-- ended badly.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, why, metadata)
SELECT :name, @dlock_fence, @dlock_since, UTC_TIMESTAMP(6), :how, :why, @dlock_who FROM DUAL WHERE @dlock_freed > 0;
DELETE FROM :runs
 WHERE @dlock_freed > 0 AND @dlock_fence % 4 = 0 AND name = :name
   AND fence < (SELECT t.fence FROM (SELECT r.fence FROM :runs AS r WHERE r.name = :name ORDER BY r.fence DESC LIMIT 1 OFFSET 99) AS t)
   AND (how IN ('ok', 'released')
        OR fence < (SELECT t.fence FROM (SELECT r.fence FROM :runs AS r WHERE r.name = :name AND r.how NOT IN ('ok', 'released')
                                          ORDER BY r.fence DESC LIMIT 1 OFFSET 99) AS t));
