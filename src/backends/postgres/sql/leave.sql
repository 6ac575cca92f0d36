-- Takes a waiter out of the queue.
-- $1 name, $2 hold
DELETE FROM {waiters} WHERE name = $1 AND hold = $2
