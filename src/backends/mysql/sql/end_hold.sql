-- Ends the hold before the lock is given back: a remaining session shows that its holder vanished.
UPDATE :sessions SET :became session = NULL, root = NULL, metadata = NULL WHERE name = :name
  AND session = :session AND root = :root;
