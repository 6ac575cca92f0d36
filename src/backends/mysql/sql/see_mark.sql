-- Notes that the holder knows that its hold is being broken.
UPDATE :marks SET seen = 1 WHERE name = :name AND fence = :fence;
