-- The mark of a break, if there is one.
SELECT mark, seen FROM :marks WHERE name = :name AND fence = :fence;
