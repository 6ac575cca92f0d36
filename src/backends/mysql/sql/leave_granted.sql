-- Removes a waiter from the queue if the row is its hold's by now. ROW_COUNT() does not tell: a
-- server that can't deliver the grant's result, since the client is gone, forgets the count.
DELETE FROM :waiters
 WHERE name = :name AND hold = :root
   AND EXISTS (SELECT 1 FROM :table AS l WHERE l.name = :name AND l.locked_by = :owner
     AND l.lock_until > UTC_TIMESTAMP(6));
