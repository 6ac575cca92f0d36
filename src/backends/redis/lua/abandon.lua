-- Leaves the queue, and passes on a wake-up that this waiter may have taken without using it.
--
-- KEYS  1 lock  2 queue  3 waiters  4 wake-up list  5 line  6 wake-up list of its own  7 fair  8 fair-readers
--       9 the line's common wake-up list
-- ARGV  1 hold  2 what the wake-up lists of those in the line begin with
-- Reply 1
--
-- Worst cases: the lock was released, this waiter was woken, and leaves instead of taking it; or it was a writer that readers let go
-- first, and no release will wake them. While the lock is held otherwise there is nothing to pass on: its release will
-- wake the next. A wake-up too many does no harm.

local went = redis.call('ZREM', KEYS[2], ARGV[1]) + redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('ZREM', KEYS[7], ARGV[1])
redis.call('ZREM', KEYS[8], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1], 'as:' .. ARGV[1], 'called:' .. ARGV[1])
redis.call('DEL', KEYS[6])
local free = redis.call('EXISTS', KEYS[1]) == 0
if free then
  wake_one(KEYS[2], KEYS[4])
end
if free or went > 0 then
  wake_line(KEYS[5], ARGV[2], KEYS[9])
end
return 1
