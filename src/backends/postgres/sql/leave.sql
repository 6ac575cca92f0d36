-- Takes a waiter out of the queue. A row comes back if there is a document that it may be in.
-- $1 name, $2 hold
DELETE FROM {waiters} WHERE name = $1 AND hold = $2;
SELECT 1 FROM {table} WHERE name = $1 AND document IS NOT NULL
