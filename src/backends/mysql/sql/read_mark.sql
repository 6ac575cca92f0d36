-- Whether somebody is breaking the hold.
SELECT mark, seen FROM :marks WHERE name = :name AND fence = :fence;
