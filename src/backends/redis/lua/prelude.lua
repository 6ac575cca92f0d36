-- What each of dlock's scripts begins with, after `common.lua`. Not a script of its own.
--
-- A lock's record is a hash next to it that foreign libraries never see:
--   v         layout version, major.minor; an unknown major is refused
--   owner     whose record it is; it counts only while the lock has this owner's field
--   fence     the fencing token
--   since     when the lock was granted; times are ms of the server's clock
--   renewed   when it was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind it
--   meta      the holder, as JSON; may be missing
--   mark      the break of the hold, as JSON; broken: the same as the end of a line of the history; seen: 1 if its holder knows
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- It outlives its lock, so that a hold which was never given back is not forgotten.
--
-- A reader's hold is a share. The lock then is the hash that Redisson's read lock has, with mode "read" and the field "<owner>:1", and beside
-- it lies the string that Redisson looks for to see how long each reader lasts. A permit is a share as well, in mode "permits", which no
-- other library knows and each takes for busy; its field "<owner>:1:permit" has its number. What dlock knows of shares lies in
-- two keys: in `shares`, a hash, by owner a record as above in JSON, with `kind` and for permits `most` and `permit`; and in
-- `ends`, a sorted set, by owner when the last of its holds ends. A hold of a share is extended only while the lock has its field. Until its
-- end in `ends` the share keeps the lock from writers and permits even if the lock is gone: Redisson's watchdog cuts the lock's time.
--
-- Waiters for the whole lock stand in the queue, and one of them is woken by a push to one list for all. Waiters for a share, or in
-- fair order, stand in the line, and each blocks on a list of its own and on one for all of the line. Of those in the line, `fair` and
-- `fair-readers` have the fair ones, with the same scores; the hash of waiters has under "as:<hold>" what they want: "x" the
-- whole lock, "s" to read, "p<n>" one of n permits; and under "called:<hold>" since when another one lets it go first, and the fence
-- counter then.
--
-- A cluster that moves a slot refuses a script if one of its declared keys has moved and another one has not, or never was. Scripts that
-- extend a hold or give it back therefore declare the lock only, and are told the other names as arguments. A command of theirs on a key that
-- has moved fails, or finds nothing at the new server: see `assert_together`.

-- How many fields a lock with shares has at most, and how many times one reader of Redisson may have entered it.
local MANY, MOST_ENTERED = 10000, 1000

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

-- A share from its JSON; nil if there is none, or if it can't be read.
local function share_from(text)
  local fine, share = pcall(cjson.decode, type(text) == 'string' and text or '')
  if not fine or type(share) ~= 'table' or type(share.owner) ~= 'string' then
    return nil
  end
  for _, value in pairs(share) do
    if type(value) ~= 'string' then
      return type(share.v) == 'string' and is_newer(share) and share or nil
    end
  end
  return share
end

-- The owner's share as a table, and nil if it has none or the lock knows nothing of it.
local function share_of(lock, shares, owner)
  local share = share_from(redis.call('HGET', shares, owner))
  if share and (is_newer(share) or has_field(lock, field_of(share))) then
    return share
  end
end

-- Fails while a cluster has moved some of these keys to another server and some not.
local function assert_together(...)
  redis.call('EXISTS', ...)
end

-- When the last share ends, and whose it is; 0 if there is none.
local function last_end(ends_key)
  local last = redis.pcall('ZRANGE', ends_key, -1, -1, 'WITHSCORES')
  return tonumber(last[2]) or 0, last[1]
end

-- Writes a share down, which is there until `ends`. Returns when the last of all ends.
local function save_share(lock, shares, ends_key, share, ends)
  -- First what another right is needed for, so that nothing is left of a share that can't be had.
  if share.kind == 'shared' then
    redis.call('SET', timeout_of(lock, share), '1', 'PXAT', whole(ends))
  end
  redis.call('ZADD', ends_key, whole(ends), share.owner)
  redis.call('HSET', shares, share.owner, cjson.encode(share))
  local latest = last_end(ends_key)
  redis.call('PEXPIREAT', shares, whole(latest + KEEP))
  redis.call('PEXPIREAT', ends_key, whole(latest + KEEP))
  return latest
end

-- Keeps a lock that has shares until `ends` at least. One without an end, which a reader of Redisson may have, stays so.
local function keep_lock(lock, ends)
  local present = end_of(lock)
  if present then
    redis.call('PEXPIREAT', lock, whole(math.max(ends, present)))
  end
end

-- The values of a hash in this mode, without the mode, if each of its fields is that of a reader or of a permit; nil otherwise.
local function values_of_shares(lock, mode)
  local count = redis.call('HLEN', lock)
  if count < 2 or count > MANY then
    return nil
  end
  local fields, values = redis.call('HGETALL', lock), {}
  local shape = mode == 'read' and '^.+:%d+$' or '^.+:%d+:permit$'
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' then
      local number = tonumber(string.match(fields[i + 1], '^%d+$'))
      if not number or mode == 'read' and number > MOST_ENTERED or not string.match(fields[i], shape) then
        return nil
      end
      values[#values + 1] = fields[i + 1]
    end
  end
  return values
end

-- When the last of Redisson's readers ends, which have these fields in the lock, each as often as it entered; nil if one has no end, or if
-- that can't be told.
local function end_of_readers(lock, readers)
  local latest = 0
  for field, entered in pairs(readers) do
    if entered > MOST_ENTERED or not end_of(lock) then
      return nil
    end
    for n = 1, entered do
      local ends = end_of('{' .. lock .. '}:' .. field .. ':rwlock_timeout:' .. n)
      if not ends then
        return nil
      end
      latest = math.max(latest, ends)
    end
  end
  return latest
end

-- Lets a lock that has shares end with the last of them, and frees it if there is none; whether there is no lock now. A reader that was given
-- back, or crashed, must not keep the lock. What is not ours by its name is a reader of Redisson, or else the lock is left as it is.
local function settle_lock(lock, shares, ends_key, now)
  local count = redis.call('HLEN', lock)
  if count == 0 or count > MANY then
    return count == 0
  end
  local flat, fields, ours, theirs, left = redis.call('HGETALL', lock), {}, {}, {}, 0
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  local mode = fields.mode
  fields.mode = nil
  if mode == 'read' then
    local known = redis.pcall('HKEYS', shares)
    for _, owner in ipairs(known.err and {} or known) do
      ours[owner .. ':1'] = true
    end
  elseif mode ~= 'permits' then
    return false
  end
  for field, value in pairs(fields) do
    local entered = tonumber(string.match(value, '^%d+$'))
    if ours[field] or mode == 'permits' and string.match(field, ':1:permit$') then
      left = left + 1
    elseif mode == 'read' and entered and string.match(field, '^.+:%d+$') then
      theirs[field] = entered
    else
      return false
    end
  end
  local latest, last = end_of_readers(lock, theirs), last_end(ends_key)
  if not latest then
    return false
  end
  latest = math.max(latest, left > 0 and last or 0)
  if latest > now then
    redis.call('PEXPIREAT', lock, whole(latest))
    return false
  end
  redis.call('DEL', lock)
  return true
end

-- Takes a share out of the lock; whether that freed it.
local function drop_share(lock, shares, ends_key, share, now)
  redis.call('HDEL', lock, field_of(share))
  redis.pcall('DEL', timeout_of(lock, share))
  redis.pcall('HDEL', shares, share.owner)
  redis.pcall('ZREM', ends_key, share.owner)
  return settle_lock(lock, shares, ends_key, now)
end

-- The hold with this fence: its record, and whether that is a share. Nil if there is none, or its record is a newer dlock's.
local function hold_with(fence, lock, record, shares)
  if record.fence == fence and record.owner and has_field(lock, record.owner .. ':1:write') then
    return record, false
  end
  local found
  local texts = redis.pcall('HVALS', shares)
  for _, text in ipairs(texts.err and {} or texts) do
    local one = share_from(text)
    -- One that the lock has forgotten keeps others out all the same.
    if one and one.fence == fence and not is_newer(one) then
      found = one
    end
  end
  if found and select(2, other_holds(found, '', (clock()))) > (clock()) then
    return found, true
  end
end

-- Remembers the shares that were never given back, and takes them out of the lock; whether there were some. Never fails: what came before
-- must stand.
local function sweep(lock, shares, ends_key, runs, bad, now)
  local owners = redis.pcall('ZRANGEBYSCORE', ends_key, '-inf', whole(now), 'LIMIT', 0, 1000)
  for _, owner in ipairs(owners.err and {} or owners) do
    local share = share_from(redis.pcall('HGET', shares, owner))
    if not share or not is_newer(share) then
      redis.pcall('HDEL', shares, owner)
    end
    redis.pcall('HDEL', lock, owner .. ':1', owner .. ':1:permit')
    remember_vanished(share or {}, runs, bad, now)
    redis.pcall('ZREM', ends_key, owner)
  end
  return not owners.err and #owners > 0
end

-- Some of the shares there are, in JSON; enough to name holders. One that has ended is among them as long as the lock has
-- its field, which would be taken for a foreign one.
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

-- The place of a waiter among all: that in its own queue, and the waiters that came before it in the other.
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

-- Pushes a wake-up to a list, of which there is one at most. Never fails: what came before must stand.
local function push(wake)
  local count = redis.pcall('LPUSH', wake, '1')
  if type(count) == 'number' then
    if count > 1 then
      redis.pcall('LTRIM', wake, 0, 0)
    end
    redis.pcall('PEXPIRE', wake, 15000)
  end
end

-- Wakes the first waiter of the line, and of the others the one that has blocked longest, on the list `any`: the first may be dead. Each that
-- is granted a share passes it on.
local function wake_line(line, prefix, any)
  local first = redis.pcall('ZRANGE', line, 0, 1)
  if not first.err and #first > 0 then
    push(prefix .. first[1])
    if any and #first > 1 then
      push(any)
    end
  end
end

-- Whether the lock has room for a request that wants `as`.
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

-- How many of those in front of a request are looked at; in ms: for how long the first of them is waited for before the others are called as
-- well, how long each has to come, and when one that gave no sign is gone.
local FRONT, HEAR, TURN, GONE = 100, 200, 1000, 15000

-- The waiters that came before a request that wants `as` and go before it, in their order: fair ones, but readers don't hold up
-- readers; and writers, before readers.
local function in_front(queue, waiters, fair, fair_readers, as, before)
  local front, fields = {}, {}
  for _, key in ipairs(as == 's' and { queue, fair } or { fair, fair_readers }) do
    local found = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'WITHSCORES', 'LIMIT', 0, FRONT)
    for i = 1, #found, 2 do
      front[#front + 1] = { hold = found[i], since = tonumber(found[i + 1]), plain = key == queue }
    end
  end
  if #front == 0 then
    return front
  end
  table.sort(front, function(a, b) return a.since < b.since end)
  for i, one in ipairs(front) do
    fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = one.hold, 'as:' .. one.hold, 'called:' .. one.hold
  end
  local said = redis.call('HMGET', waiters, unpack(fields))
  for i, one in ipairs(front) do
    one.seen = tonumber(string.match(said[3 * i - 2] or '', '^%d+')) or 0
    one.wants = not one.plain and said[3 * i - 1] or 'x'
    one.called, one.counter = string.match(said[3 * i] or '', '^(%d+):(%d*)$')
    one.called = tonumber(one.called) or 0
  end
  return front
end

-- For how many ms yet a request that wants `as` must let another one go first that came before it, or nil. The lock has room for the request.
--
-- Worst cases: the waiters that go first have died. The first of them has a second to come from when it was called; those behind it are called
-- soon after it, and have the same second. A waiter that has not come by then loses its place; or, if there is no room for it, after 15 s without a sign.
-- A call counts only until the next grant (the counter tells) or until the called one asks again.
local function held_up(lock, counter, queue, waiters, line, fair, fair_readers, as, hold, now, us, prefix, wake)
  local mine = redis.call('ZSCORE', line, hold) or redis.call('ZSCORE', queue, hold)
  local front = in_front(queue, waiters, fair, fair_readers, as, '(' .. (mine or whole(us)))
  if #front == 0 then
    return nil
  end
  local most = tonumber(string.match(as, '^p(%d+)$'))
  local free = most and math.min(most - math.max(redis.call('HLEN', lock) - 1, 0), FRONT) or 0
  -- As many permits as there is room for go together, whichever of them comes first; those from the nth on are left.
  local function alike(nth)
    local all = #front - nth + 1 < free
    for i = nth, #front do
      all = all and string.sub(front[i].wants, 1, 1) == 'p'
    end
    return all
  end
  if alike(1) then
    return nil
  end
  local last, first, held = redis.call('GET', counter) or '', nil, nil
  local function call(one)
    one.called = now
    redis.call('HSET', waiters, 'called:' .. one.hold, whole(now) .. ':' .. last)
    push(one.plain and wake or prefix .. one.hold)
  end
  for i, one in ipairs(front) do
    local left, room = one.seen + GONE - now, has_room(lock, one.wants)
    local is_called = one.counter == last
    local asks_anew = not is_called or one.called < one.seen
    if i > 1 and not first and left > 0 and (not room or asks_anew or one.called + TURN > now) and alike(i) then
      return nil
    end
    if left > 0 and room and not first then
      if asks_anew then
        call(one)
      end
      left = one.called + TURN - now
    elseif left > 0 and room and one.seen < first.called and (not is_called or one.called < first.called) then
      call(one)
    end
    if left <= 0 then
      leave_queue(queue, waiters, one.hold)
      leave_line(line, fair, fair_readers, waiters, one.hold)
    elseif not first then
      first, held = one, left
      if not room then
        return held
      elseif now - one.called < HEAR and i < #front then
        return one.called + HEAR - now
      end
    end
  end
  return held
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

-- Pushes one wake-up if there may be a waiter and no wake-up lies there already. Never fails: what came before must stand.
local function wake_one(queue, wake)
  if redis.pcall('EXISTS', queue) == 1 then
    push(wake)
  end
end

-- Wakes the waiters for Redisson's plain lock, its read-write lock and its fair lock; the first ones of the fair lock's queue listen each on a
-- channel of its own. In a cluster they listen where the channel's slot is, or, as before Redis 7, on any node.
local function tell_redisson(channel, rw_channel, fair_queue, in_cluster)
  local told, first = { { channel, '0' }, { rw_channel, '1' } }, redis.pcall('LRANGE', fair_queue, 0, 2)
  for _, waiter in ipairs(first.err and {} or first) do
    told[#told + 1] = { channel .. ':' .. waiter, '0' }
  end
  for _, one in ipairs(told) do
    if in_cluster == '1' then
      redis.pcall('SPUBLISH', one[1], one[2])
    end
    redis.pcall('PUBLISH', one[1], one[2])
  end
end
