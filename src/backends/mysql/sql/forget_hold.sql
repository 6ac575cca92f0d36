-- The hold is over, and was never used: whether or not the session that had it is over.
UPDATE :sessions SET :became session = NULL, root = NULL, metadata = NULL WHERE name = :name AND root = :root AND :which;
