-- As end_hold.sql, for a reader.
DELETE FROM :readers WHERE name = :name AND session = :session AND root = :root;
