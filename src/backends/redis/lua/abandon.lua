-- Leaves the queue, and passes on a wake-up that this waiter may have taken without using it.
--
-- KEYS  1 lock  2 queue  3 waiters  4 wake-up list
-- ARGV  1 hold
-- Reply 1
--
-- Worst case: the lock was released, this waiter was woken, and leaves instead of taking it. While the lock is
-- held there is nothing to pass on: its release will wake the next. A wake-up too many does no harm.

redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
  wake_one(KEYS[2], KEYS[4])
end
return 1
