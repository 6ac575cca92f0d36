-- All of a lock's history but the last hundred go, and all but the last hundred of those that ended badly; as the trigger does.
-- ?1 namespace, ?2 key, ?3 one less than so many
DELETE FROM runs
 WHERE namespace = ?1 AND key = ?2
   AND fence < (SELECT fence FROM runs AS r WHERE r.namespace = ?1 AND r.key = ?2 ORDER BY fence DESC LIMIT 1 OFFSET ?3)
   AND (ended IN ('ok', 'released')
        OR fence < (SELECT fence FROM runs AS r WHERE r.namespace = ?1 AND r.key = ?2
                       AND ended NOT IN ('ok', 'released') ORDER BY fence DESC LIMIT 1 OFFSET ?3))
