-- Notes that the holder knows that somebody is breaking its hold.
UPDATE :marks AS m JOIN :table AS l ON l.name = m.name AND l.fence = m.fence SET m.seen = 1 WHERE m.name = :name AND l.locked_by = :owner;
