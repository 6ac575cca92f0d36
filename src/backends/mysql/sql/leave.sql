-- Removes a waiter from the queue, and waiters that have been silent for long, or since the
-- server's clock was set back.
DELETE FROM :waiters
 WHERE name = :name AND (hold = :root OR seen < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND OR seen
   > UTC_TIMESTAMP(6) + INTERVAL 60 SECOND);
