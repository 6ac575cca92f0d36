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

--
-- Who waits for the whole lock stands in the queue, and one of them is woken by a push to one list for all. Who waits for a share, or in
-- fair order, stands in the line, and each blocks on a list of its own. Of those in the line, `fair` and `fair-readers` have those who asked
-- for fair order, with the same scores; the hash of waiters has under "as:<hold>" what they want: "x" the whole lock, "s" to read, "p<n>"
-- one of n permits; and under "called:<hold>" since when somebody has let one go first, and the fence counter then.

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
  local text = redis.call('HGET', shares, owner)
  local share = text and cjson.decode(text)
  if share and (is_newer(share) or has_field(lock, field_of(share))) then
    return share
  end
end

-- Writes a share down, which is there until `ends`.
local function save_share(lock, shares, ends_key, share, ends)
  -- First what another right is needed for, so that nothing is left of a share that can't be had.
  if share.kind == 'shared' then
    redis.call('SET', timeout_of(lock, share), '1', 'PXAT', whole(ends))
  end
  redis.call('ZADD', ends_key, whole(ends), share.owner)
  redis.call('HSET', shares, share.owner, cjson.encode(share))
  local latest = whole(tonumber(redis.call('ZRANGE', ends_key, -1, -1, 'WITHSCORES')[2]) + KEEP)
  redis.call('PEXPIREAT', shares, latest)
  redis.call('PEXPIREAT', ends_key, latest)
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

-- Some of the shares there are, in JSON; enough to tell who has the lock. One that has ended is among them as long as the lock has
-- its field, which would be taken for somebody else's.
local function some_shares(shares, ends_key)
  local owners = redis.pcall('ZRANGE', ends_key, 0, 31, 'REV')
  if owners.err or #owners == 0 then
    return {}
  end
  return redis.call('HMGET', shares, unpack(owners))
end

-- Joins the line, in fair order if `as` is not "". Never fails, as `join_queue`.
local function join_line(line, fair, fair_readers, waiters, hold, who, now, us, as)
  local place = join_queue(line, waiters, hold, who, now, us)
  if as ~= '' then
    local set = as == 's' and fair_readers or fair
    redis.pcall('HSET', waiters, 'as:' .. hold, as)
    redis.pcall('ZADD', set, 'NX', redis.pcall('ZSCORE', line, hold), hold)
    redis.pcall('PEXPIRE', set, 20000)
  end
  return place
end

-- The place of one among all who wait: that in its own queue, and who came before it in the other.
local function place_of(place, mine, other, hold)
  if place == 0 or redis.pcall('EXISTS', other) ~= 1 then
    return place
  end
  local before = redis.pcall('ZCOUNT', other, '-inf', '(' .. redis.call('ZSCORE', mine, hold))
  return type(before) == 'number' and place + before or 0
end

-- Leaves the line. Never fails: what came before must stand.
local function leave_line(line, fair, fair_readers, waiters, hold)
  leave_queue(line, waiters, hold)
  redis.pcall('ZREM', fair, hold)
  redis.pcall('ZREM', fair_readers, hold)
  redis.pcall('HDEL', waiters, 'as:' .. hold)
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

-- Whether the lock has room for one who wants `as`.
local function has_room(lock, as)
  if redis.call('EXISTS', lock) == 0 then
    return true
  end
  local mode, most = redis.call('HGET', lock, 'mode'), tonumber(string.match(as, '^p(%d+)$'))
  if most then
    return mode == 'permits' and redis.call('HLEN', lock) - 1 < most
  end
  return mode == 'read' and as == 's'
end

-- For how many ms yet a request that wants `as` must let another one go first that came before it, or nil: one who asked for fair order,
-- but readers don't hold up readers; and a writer, before readers. The lock has room for the request.
--
-- Worst cases: who is to go first has died. It has a second to come from when it was first let go first, and loses its place then; or, if
-- there is no room for it, after 15 s without a sign. A call counts only until somebody is granted the lock (the counter tells) or until
-- it asks again.
local function held_up(lock, counter, queue, waiters, line, fair, fair_readers, as, hold, now, us)
  local mine = redis.call('ZSCORE', line, hold) or redis.call('ZSCORE', queue, hold)
  local before, most = '(' .. (mine or whole(us)), tonumber(string.match(as, '^p(%d+)$'))
  for _ = 1, 8 do
    local first, wants, since
    for _, key in ipairs(as == 's' and { queue, fair } or { fair, fair_readers }) do
      local one = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'WITHSCORES', 'LIMIT', 0, 1)
      if one[1] and (not since or tonumber(one[2]) < since) then
        first, since = one[1], tonumber(one[2])
        wants = key == queue and 'x' or redis.call('HGET', waiters, 'as:' .. first) or 'x'
      end
    end
    if not first then
      return nil
    end
    if most and redis.call('ZCOUNT', fair_readers, '-inf', before) == 0 then
      -- As many as there is room for go together, whoever of them comes first.
      local room = most - math.max(redis.call('HLEN', lock) - 1, 0)
      local others = redis.call('ZRANGEBYSCORE', fair, '-inf', before, 'LIMIT', 0, room)
      local alike = #others < room
      for _, other in ipairs(others) do
        alike = alike and string.sub(redis.call('HGET', waiters, 'as:' .. other) or '', 1, 1) == 'p'
      end
      if alike then
        return nil
      end
    end
    local seen = tonumber(string.match(redis.call('HGET', waiters, first) or '', '^%d+')) or 0
    local left = seen + 15000 - now
    if left > 0 and has_room(lock, wants) then
      local last = redis.call('GET', counter) or ''
      local at, when = string.match(redis.call('HGET', waiters, 'called:' .. first) or '', '^(%d+):(%d*)$')
      if when ~= last or tonumber(at) < seen then
        at = whole(now)
        redis.call('HSET', waiters, 'called:' .. first, at .. ':' .. last)
      end
      left = at + 1000 - now
    end
    if left > 0 then
      return left
    end
    leave_queue(queue, waiters, first)
    leave_line(line, fair, fair_readers, waiters, first)
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
