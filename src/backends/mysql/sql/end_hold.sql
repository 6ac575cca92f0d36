-- The hold ends before the lock is given back: a session that is left here tells that its holder vanished.
UPDATE :sessions SET :became session = NULL, root = NULL, metadata = NULL WHERE name = :name AND session = :session AND root = :root;
