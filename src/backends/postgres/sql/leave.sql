-- Removes a waiter from the list. Returns a row if the lock's document has a queue, which may have
-- the waiter. $1 name, $2 hold
DELETE FROM {waiters} WHERE name = $1 AND hold = $2;
SELECT 1 FROM {table} AS l WHERE name = $1 AND NOT {unlined}
