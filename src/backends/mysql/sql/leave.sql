-- Takes a waiter out of the queue, and waiters that were not heard of for long, or not since the server's clock was set back.
DELETE FROM :waiters
 WHERE name = :name AND (hold = :root OR seen < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND OR seen > UTC_TIMESTAMP(6) + INTERVAL 60 SECOND);
