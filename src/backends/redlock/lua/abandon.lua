-- Leaves the queue on one node. Nobody is woken: who waits looks by itself.
--
-- KEYS  1 queue  2 waiters
-- ARGV  1 hold
-- Reply 1

redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
