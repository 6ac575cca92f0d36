-- Leaves the queue, and passes on a wake-up that this waiter may have received and not used.
--
-- KEYS  1 lock   2 queue   3 waiters   4 wake-up list   5 line   6 wake-up list of its own   7 fair
--       8 fair-readers   9 the common wake-up list of `line`
-- ARGV  1 hold  2 prefix of the wake-up lists of `line`
-- Reply 1
--
-- Worst cases: the lock was released, this waiter was woken, and it leaves instead of taking the
-- lock. Or the waiter was a writer that kept back readers, and no release will wake them. In all
-- other cases the holder's release wakes the next waiter. A surplus wake-up does no harm, but the
-- last waiter leaves none behind.

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
for queue, wake in pairs({ [2] = 4, [5] = 9 }) do
  if redis.call('EXISTS', KEYS[queue]) == 0 then
    redis.call('DEL', KEYS[wake])
  end
end
return 1
