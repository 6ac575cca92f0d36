-- As end_hold.sql, of one who reads.
DELETE FROM :readers WHERE name = :name AND session = :session AND root = :root;
