-- Marks the hold with this fence as to be broken, if it has the lock. One that was marked before keeps whether it was seen. Marks of
-- holds that are over go.
DELETE FROM :marks
 WHERE name = :name AND fence <> :fence
   AND fence NOT IN (SELECT fence FROM :table WHERE name = :name) AND fence NOT IN (SELECT fence FROM :sessions WHERE name = :name)
   AND fence NOT IN (SELECT fence FROM :readers WHERE name = :name);
INSERT INTO :marks (name, fence, mark, broken)
SELECT l.name, l.fence, :mark, :broken FROM :table AS l
 WHERE l.name = :name AND l.fence = :fence AND l.owner = l.locked_by AND (l.root IS NOT NULL OR l.holds IS NOT NULL) AND l.lock_until > UTC_TIMESTAMP(6)
    ON DUPLICATE KEY UPDATE mark = :mark, broken = :broken;
SELECT COUNT(*) FROM :table AS l WHERE l.name = :name AND l.fence = :fence AND l.owner = l.locked_by AND (l.root IS NOT NULL OR l.holds IS NOT NULL) AND l.lock_until > UTC_TIMESTAMP(6);
