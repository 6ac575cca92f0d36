-- Notes that the holder knows that somebody is breaking its hold.
UPDATE :marks SET seen = 1 WHERE name = :name AND fence = :fence;
