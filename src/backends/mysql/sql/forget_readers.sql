-- Removes the records of readers: a writer has the row alone.
DELETE FROM :readers
 WHERE name = :name AND EXISTS (SELECT 1 FROM :sessions AS s WHERE s.name = :name
   AND s.session = :session AND s.root = :root);
