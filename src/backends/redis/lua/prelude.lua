-- Common beginning of each of dlock's scripts, after `common.lua`. Not a script of its own.
--
-- A lock's record is a hash next to the lock. Foreign libraries never read it:
--   v         layout version, major.minor; an unknown major is refused
--   owner     the record's owner; the record counts only while the lock has this owner's field
--   fence     the fencing token
--   since     when the lock was granted; times are ms of the server's clock
--   renewed   when the hold was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind the hold
--   meta      the holder, as JSON; may be missing
--   mark      the break of the hold, as JSON; seen: 1 if the holder knows of the break
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- The record outlives its lock, so that the history gets a hold that was never released.
--
-- A reader's hold is a share. The lock is then a hash like Redisson's read lock, with mode "read"
-- and the field "<owner>:1". The string next to the hash tells Redisson how long the reader's lease
-- lasts. A permit is a share too, in mode "permits", which other libraries take for busy; its field
-- "<owner>:1:permit" has its number. dlock's data on shares is in two keys. The hash `shares` has
-- one record per owner, as above but in JSON, with `kind` and, for permits, `most` and `permit`.
-- The sorted set `ends` has, per owner, the end of its last hold. A share is extended only while
-- the lock has its field. Until its end in `ends`, a share keeps out writers and permits even if
-- the lock is gone: Redisson's watchdog may shorten the lock's TTL.
--
-- Unfair exclusive waiters are in `queue`; a push to one common list wakes one of them. Other
-- waiters (for a share, or fair) are in the second queue, `line`. Each blocks on its own wake-up
-- list and on one common to `line`. `fair` and `fair-readers` list the fair waiters of `line`, with
-- the same scores. The hash of waiters has two more fields per waiter. "as:<hold>" is its request:
-- "x" for the whole lock, "s" to read, "p<n>" for one of n permits. "called:<hold>" is set when a
-- later request offers it the lock: the time of the offer and the fence counter at that time.
--
-- A proxy may deliver a request late: dlock gave it up, and asked again or released over another
-- connection. The string `late:<hold>` has the number from which on the hold's requests count. A
-- later request and the release write it, only after a request went unanswered.
--
-- While a cluster moves a slot, it refuses a script of which some declared keys have moved and
-- others have not, or don't exist. Scripts that renew or release therefore declare only the lock
-- and take the other names as arguments. A command on an undeclared key that has moved fails, or
-- finds nothing on the new server: see `assert_together`.

-- The most fields that a lock with shares may have, and the most times that one reader of Redisson
-- may have entered the lock.
local MANY, MOST_ENTERED = 10000, 1000

-- Whether the hash at `lock` has `field`. False if the key is no hash; other errors are raised.
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

-- Whether a hold's request with this number comes after a later one, or after the release.
-- Otherwise, earlier ones will be refused.
local function is_late(late, number)
  if (tonumber(redis.call('GET', late)) or 0) > number then
    return true
  end
  if number > 1 then
    redis.call('SET', late, whole(number), 'PX', LATE)
  end
  return false
end

-- Returns the share's field in the lock.
local function field_of(share)
  return share.owner .. (share.kind == 'permits' and ':1:permit' or ':1')
end

-- Returns the key where Redisson looks for a reader's lease. dlock's readers enter once, hence the
-- ":1".
local function timeout_of(lock, share)
  return '{' .. lock .. '}:' .. share.owner .. ':1:rwlock_timeout:1'
end

-- Parses a share's JSON; nil if there is none or if it is unreadable.
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

-- Returns the owner's share as a table; nil if it has none, or if the lock lacks the share's field.
local function share_of(lock, shares, owner)
  local share = share_from(redis.call('HGET', shares, owner))
  if share and (is_newer(share) or has_field(lock, field_of(share))) then
    return share
  end
end

-- Fails while a cluster has moved only some of these keys to another server.
local function assert_together(...)
  redis.call('EXISTS', ...)
end

-- Returns the end of the last share (0 if there is none), and its owner.
local function last_end(ends_key)
  local last = redis.pcall('ZRANGE', ends_key, -1, -1, 'WITHSCORES')
  return tonumber(last[2]) or 0, last[1]
end

-- Saves a share that ends at `ends`. Returns the end of the last of all shares.
local function save_share(lock, shares, ends_key, share, ends)
  -- SET comes first, since its key may be outside the user's ACL: a refused share then leaves
  -- nothing behind.
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

-- Keeps a lock that has shares until `ends` at least. A lock without an end (of a reader of
-- Redisson) stays without one.
local function keep_lock(lock, ends)
  local present = end_of(lock)
  if present then
    redis.call('PEXPIREAT', lock, whole(math.max(ends, present)))
  end
end

-- Returns the values of the lock's fields except `mode`; nil unless each field is a reader's or a
-- permit's, as `mode` says.
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
      if not number or mode == 'read' and number > MOST_ENTERED
          or not string.match(fields[i], shape) then
        return nil
      end
      values[#values + 1] = fields[i + 1]
    end
  end
  return values
end

-- Returns the end of the last of Redisson's readers. `readers` maps a reader's field to the number
-- of times that it entered. Nil if one has no end, or if an end is unknown.
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

-- Sets the lock's end to that of its last share, or deletes a lock without shares. Returns whether
-- the lock is gone. A reader that released or crashed must not keep the lock. A field of another
-- owner must be a reader of Redisson; otherwise the lock stays unchanged.
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

-- Removes a share from the lock. Returns whether the lock is free now.
local function drop_share(lock, shares, ends_key, share, now)
  redis.call('HDEL', lock, field_of(share))
  redis.pcall('DEL', timeout_of(lock, share))
  redis.pcall('HDEL', shares, share.owner)
  redis.pcall('ZREM', ends_key, share.owner)
  return settle_lock(lock, shares, ends_key, now)
end

-- Finds the hold with this fence. Returns its record and whether the record is a share; nil if
-- there is none or a newer dlock wrote it.
local function hold_with(fence, lock, record, shares)
  if record.fence == fence and record.owner and has_field(lock, record.owner .. ':1:write') then
    return record, false
  end
  local found
  local texts = redis.pcall('HVALS', shares)
  for _, text in ipairs(texts.err and {} or texts) do
    local one = share_from(text)
    -- A share counts even if the lock has lost its field: it still keeps others out.
    if one and one.fence == fence and not is_newer(one) then
      found = one
    end
  end
  if found and select(2, other_holds(found, '', (clock()))) > (clock()) then
    return found, true
  end
end

-- Writes shares that expired unreleased to the history and removes them from the lock. Returns
-- whether there were any. Never fails: the writes before it must stand.
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

-- Returns up to 32 shares as JSON, enough to name holders. An ended share is included while the
-- lock still has its field: without its share, the field would look foreign.
local function some_shares(shares, ends_key)
  local owners = redis.pcall('ZRANGE', ends_key, 0, 31, 'REV')
  if owners.err or #owners == 0 then
    return {}
  end
  return redis.call('HMGET', shares, unpack(owners))
end

-- Joins `line`, in fair order if `as` is not "". Never fails, like `join_queue`.
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

-- Returns a waiter's position: its position in its own queue plus the earlier waiters of the other
-- queue.
local function place_of(place, mine, other, hold)
  if place == 0 or redis.pcall('EXISTS', other) ~= 1 then
    return place
  end
  local before = redis.pcall('ZCOUNT', other, '-inf', '(' .. redis.call('ZSCORE', mine, hold))
  return type(before) == 'number' and place + before or 0
end

-- Leaves `line`. Never fails: the writes before it must stand.
local function leave_line(line, fair, fair_readers, waiters, hold)
  leave_queue(line, waiters, hold)
  redis.pcall('ZREM', fair, hold)
  redis.pcall('ZREM', fair_readers, hold)
  redis.pcall('HDEL', waiters, 'as:' .. hold)
end

-- Pushes a wake-up to a list, which holds at most one. Never fails: the writes before it must
-- stand.
local function push(wake)
  local count = redis.pcall('LPUSH', wake, '1')
  if type(count) == 'number' then
    if count > 1 then
      redis.pcall('LTRIM', wake, 0, 0)
    end
    redis.pcall('PEXPIRE', wake, 15000)
  end
end

-- Wakes the first waiter of `line`. The first may be dead, so a push to the list `any` also wakes
-- the waiter that has blocked longest. A waiter that is granted a share wakes the next.
local function wake_line(line, prefix, any)
  local first = redis.pcall('ZRANGE', line, 0, 1)
  if not first.err and #first > 0 then
    push(prefix .. first[1])
    if any and #first > 1 then
      push(any)
    end
  end
end

-- Whether the lock has room for a request `as` ("x", "s" or "p<n>").
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

-- FRONT: the most earlier waiters that are examined. In ms: HEAR, how long the first alone has the
-- offer; TURN, how long an offered waiter has to take the lock; GONE, the silence after which a
-- waiter counts as dead.
local FRONT, HEAR, TURN, GONE = 100, 200, 1000, 15000

-- Returns the earlier waiters that go before a request `as`, in order of arrival. For a reader:
-- unfair exclusive waiters, and fair waiters except readers. For any other request: fair waiters.
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
    fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = one.hold, 'as:' .. one.hold, 'called:'
        .. one.hold
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

-- Returns for how many more ms a request `as` must let an earlier waiter go first, or nil. The lock
-- must have room for the request.
--
-- Worst case: the earlier waiters have died. The first has one second from its offer. The waiters
-- behind it get their offers soon after and have the same second. A waiter that misses its offer
-- loses its position; one without room loses it after 15 s of silence. An offer counts only until
-- the next grant (the fence counter shows it) or until the offered waiter asks again.
local function held_up(lock, counter, queue, waiters, line, fair, fair_readers, as, hold, now, us,
    prefix, wake)
  local mine = redis.call('ZSCORE', line, hold) or redis.call('ZSCORE', queue, hold)
  local front = in_front(queue, waiters, fair, fair_readers, as, '(' .. (mine or whole(us)))
  if #front == 0 then
    return nil
  end
  local most = tonumber(string.match(as, '^p(%d+)$'))
  local free = most and math.min(most - math.max(redis.call('HLEN', lock) - 1, 0), FRONT) or 0
  -- Whether all waiters from the nth on want permits and there is room for them and this request:
  -- their order then doesn't matter.
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
    if i > 1 and not first and left > 0 and alike(i) then
      return nil
    end
    if left > 0 and room and not first then
      if not is_called or one.called < one.seen then
        call(one)
      end
      left = one.called + TURN - now
    elseif left > 0 and room and one.seen < first.called
        and (not is_called or one.called < first.called) then
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

-- Returns the next fence; nil beyond 2^53. Never below the time in us, so that a server that lost
-- its data repeats no fence.
local function next_fence(counter, us)
  local fence = redis.call('INCR', counter)
  if fence < us then
    fence = us
    redis.call('SET', counter, whole(fence))
  end
  return fence < 9007199254740992 and whole(fence) or nil
end

-- Pushes a wake-up if `queue` exists; the list keeps at most one. Never fails: the writes before it
-- must stand.
local function wake_one(queue, wake)
  if redis.pcall('EXISTS', queue) == 1 then
    push(wake)
  end
end

-- Wakes the waiters of Redisson's plain, read-write and fair lock. The first three waiters in the
-- fair lock's queue listen each on its own channel. In a cluster, Redisson listens on the node of
-- the channel's slot (sharded, Redis 7 on) or on any node.
local function tell_redisson(channel, rw_channel, fair_queue, in_cluster)
  local told, first = { { channel, '0' }, { rw_channel, '1' } },
      redis.pcall('LRANGE', fair_queue, 0, 2)
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
