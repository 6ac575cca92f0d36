-- Removes all but the last hundred entries, and all but the last hundred of those that ended badly.
DELETE FROM :runs
 WHERE :due AND name = :name
   AND fence < (SELECT t.fence FROM (SELECT r.fence FROM :runs AS r WHERE r.name = :name
     ORDER BY r.fence DESC LIMIT 1 OFFSET 99) AS t)
   AND (how IN ('ok', 'released')
        OR fence < (SELECT t.fence FROM (SELECT r.fence FROM :runs AS r WHERE r.name = :name
          AND r.how NOT IN ('ok', 'released')
                                          ORDER BY r.fence DESC LIMIT 1 OFFSET 99) AS t));
