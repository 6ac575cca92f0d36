-- Takes a waiter out of the list. A row comes back if there is a queue in the lock's document, where it may be.
-- $1 name, $2 hold
DELETE FROM {waiters} WHERE name = $1 AND hold = $2;
SELECT 1 FROM {table} AS l WHERE name = $1 AND NOT {unlined}
