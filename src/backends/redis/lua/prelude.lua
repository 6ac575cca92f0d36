-- What each of dlock's scripts begins with, after `common.lua`. Not a script of its own.
--
-- A lock's record is the hash beside it that foreign libraries never see:
--   v         layout version, major.minor; an unknown major is refused
--   owner     whose record it is; it counts only while the lock has this owner's field
--   fence     the fencing token
--   since     when the lock was granted; times are ms of the server's clock
--   renewed   when it was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind it
--   meta      who, as JSON; may be missing
--   mark      who is breaking the hold, as JSON; broken: the same as the end of a line of the history; seen: 1 if its holder knows
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- It outlives its lock, so that a hold which was never given back is not forgotten.

-- Whether the hash at `lock` has `field`. Something else than a hash has not; other errors are raised.
local function has_field(lock, field)
  local reply = redis.pcall('HEXISTS', lock, field)
  if type(reply) == 'number' then
    return reply == 1
  end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then
    return false
  end
  error(reply.err)
end

-- Pushes one wake-up if somebody may wait and none lies there already. Never fails: what came before must stand.
local function wake_one(queue, wake)
  if redis.pcall('EXISTS', queue) == 1 and redis.pcall('EXISTS', wake) == 0 then
    redis.pcall('LPUSH', wake, '1')
    redis.pcall('PEXPIRE', wake, 15000)
  end
end

-- Tells those who wait for Redisson's plain lock and its read-write lock. In a cluster from Redis 7 on they listen where the
-- channel's slot is; before, on all nodes.
local function tell_redisson(channel, rw_channel, in_cluster)
  for _, one in ipairs({ { channel, '0' }, { rw_channel, '1' } }) do
    if in_cluster ~= '1' or type(redis.pcall('SPUBLISH', one[1], one[2])) ~= 'number' then
      redis.pcall('PUBLISH', one[1], one[2])
    end
  end
end
