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
--
-- A reader's hold is a share. The lock then is the hash that Redisson's read lock has, with mode "read" and the field "<owner>:1", and beside
-- it lies the string that Redisson looks for to see how long each reader lasts. A permit is a share as well, in mode "permits", which no
-- other library knows and each takes for busy; its field "<owner>:1:permit" has its number. What dlock knows of shares lies in
-- two keys: in `shares`, a hash, by owner a record as above in JSON, with `kind` and for permits `most` and `permit`; and in
-- `ends`, a sorted set, by owner when the last of its holds ends. A share counts only while the lock has its field.

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

-- The field that a share has in the lock.
local function field_of(share)
  return share.owner .. (share.kind == 'permits' and ':1:permit' or ':1')
end

-- Where Redisson looks for how long a reader lasts, which it enters once.
local function timeout_of(lock, share)
  return '{' .. lock .. '}:' .. share.owner .. ':1:rwlock_timeout:1'
end

-- The owner's share as a table, and nil if it has none or the lock knows nothing of it.
local function share_of(lock, shares, owner)
  local text = redis.pcall('HGET', shares, owner)
  local share = type(text) == 'string' and cjson.decode(text) or nil
  if share and (is_newer(share) or has_field(lock, field_of(share))) then
    return share
  end
end

-- Writes a share down, which is there until `ends`.
local function save_share(lock, shares, ends_key, share, ends)
  redis.call('ZADD', ends_key, whole(ends), share.owner)
  redis.call('HSET', shares, share.owner, cjson.encode(share))
  local latest = whole(tonumber(redis.call('ZRANGE', ends_key, -1, -1, 'WITHSCORES')[2]) + KEEP)
  redis.call('PEXPIREAT', shares, latest)
  redis.call('PEXPIREAT', ends_key, latest)
  if share.kind == 'shared' then
    redis.call('SET', timeout_of(lock, share), '1', 'PXAT', whole(ends))
  end
end

-- Keeps a lock that has shares until `ends` at least. One without an end, which a reader of Redisson may have, stays so.
local function keep_lock(lock, ends, now)
  local left = redis.call('PTTL', lock)
  if left ~= -1 then
    redis.call('PEXPIREAT', lock, whole(math.max(ends, now + left)))
  end
end

-- Lets a lock that has shares end with the last of them, and frees it if there is none; whether it did. A reader that was given back,
-- or crashed, must not keep the lock.
local function settle_lock(lock, ends_key)
  local last = redis.pcall('ZRANGE', ends_key, -1, -1, 'WITHSCORES')
  local latest, left, now = tonumber(last[2]) or 0, redis.call('HLEN', lock) - 1, clock()
  if left > redis.call('ZCARD', ends_key) then
    -- Readers of Redisson, each of which is as many as it entered. One without an end keeps the lock so.
    if redis.call('PTTL', lock) == -1 then
      return false
    end
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
      for n = 1, tonumber(fields[i + 1]) or 0 do
        latest = math.max(latest, now + redis.call('PTTL', '{' .. lock .. '}:' .. fields[i] .. ':rwlock_timeout:' .. n))
      end
    end
  end
  if left > 0 and latest > now then
    redis.call('PEXPIREAT', lock, whole(latest))
    return false
  end
  redis.call('DEL', lock)
  return true
end

-- Takes a share out of the lock; whether that freed it.
local function drop_share(lock, shares, ends_key, share)
  redis.call('HDEL', lock, field_of(share))
  redis.pcall('DEL', timeout_of(lock, share))
  redis.pcall('HDEL', shares, share.owner)
  redis.pcall('ZREM', ends_key, share.owner)
  return settle_lock(lock, ends_key)
end

-- Remembers the shares that were never given back, a few at a time, and takes them out of the lock; all of them
-- where there is no lock. Whether the lock is free now.
local function sweep(lock, shares, ends_key, runs, bad, now, is_free)
  local owners = redis.pcall('ZRANGEBYSCORE', ends_key, '-inf', is_free and '+inf' or whole(now), 'LIMIT', 0, 32)
  for _, owner in ipairs(owners.err and {} or owners) do
    local text = redis.call('HGET', shares, owner)
    local share = text and cjson.decode(text)
    if share and not is_newer(share) then
      if not is_free then
        redis.call('HDEL', lock, field_of(share))
      end
      redis.call('HDEL', shares, owner)
      remember_vanished(share, runs, bad, now)
    end
    redis.call('ZREM', ends_key, owner)
  end
  return is_free or (#owners > 0 and settle_lock(lock, ends_key))
end

-- Some of the shares there are, in JSON; enough to tell who has the lock.
local function live_shares(shares, ends_key, now)
  local owners = redis.pcall('ZRANGEBYSCORE', ends_key, '(' .. whole(now), '+inf', 'LIMIT', 0, 32)
  if owners.err or #owners == 0 then
    return {}
  end
  return redis.call('HMGET', shares, unpack(owners))
end

-- Pushes a wake-up to each of the two who are first in the line of those that want shares and have not one lying there already:
-- one of them may be frozen. Each that is granted a share passes it on. Never fails: what came before must stand.
local function wake_line(line, prefix)
  local first = redis.pcall('ZRANGE', line, 0, 1)
  for _, hold in ipairs(first.err and {} or first) do
    local wake = prefix .. hold
    if redis.pcall('EXISTS', wake) == 0 then
      redis.pcall('LPUSH', wake, '1')
      redis.pcall('PEXPIRE', wake, 15000)
    end
  end
end

-- Never below the time in us, so that a server that lost its data doesn't repeat a fence; nil beyond 2^53.
local function next_fence(counter, us)
  local fence = redis.call('INCR', counter)
  if fence < us then
    fence = us
    redis.call('SET', counter, whole(fence))
  end
  return fence < 9007199254740992 and whole(fence) or nil
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
