-- Marks the session's hold with this fence for a break, if it has the lock, and returns the session
-- and whether the hold was marked before. A repeated mark keeps whether the holder knows it. Marks
-- of ended holds are removed.
DELETE FROM :marks
 WHERE name = :name AND fence <> :fence
   AND fence NOT IN (SELECT fence FROM :sessions WHERE name = :name)
   AND fence NOT IN (SELECT fence FROM :readers WHERE name = :name);
SELECT COUNT(*) FROM :marks WHERE name = :name AND fence = :fence;
INSERT INTO :marks (name, fence, mark)
SELECT s.name, s.fence, :mark FROM :holds AS s WHERE s.name = :name AND s.fence = :fence
  AND s.session IS NOT NULL AND :has
    ON DUPLICATE KEY UPDATE mark = :mark;
SELECT s.session FROM :holds AS s WHERE s.name = :name AND s.fence = :fence
  AND s.session IS NOT NULL AND :has;
