-- Removes the record of a hold that was never used, or whose session is over.
UPDATE :sessions SET :became session = NULL, root = NULL, metadata = NULL WHERE name = :name
  AND root = :root AND :which;
