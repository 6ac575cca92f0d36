-- Phase 1 on one node: takes a free node, joins other readers, reenters for its owner, or reports
-- the holders and joins the waiters.
--
-- KEYS  1 lock   2 fence counter   3 record   4 queue (zset: hold by arrival in us)
--       5 waiters (hash: hold -> refreshed:JSON)   6 runs   7 runs that ended badly   8 starts
--       9 shares   10 their ends   11 line (like the queue, for waiting readers)
-- ARGV  1 owner   2 hold   3 attempt, never sent twice   4 ttl in ms
--       5 "1": only reenter the owner's hold   6 "1": join the queue if busy
--       7 "1": this hold may be in the queue   8 "1": detached   9 metadata as JSON, or ""
--       10 place   11 skew guard in ms   12 at-least in ms   13 once: window in ms
--       14 retries of failed runs   15 "1": of crashed ones   16 "1": to read
--       17 "1": don't deny for a start: the caller has judged the majority's run records
--       18 attempts that are taken over even if committed: their undoing may be on its way. It names them, since this may arrive late,
--          when a later attempt has the node
--       19 for how many ms a waiter with this request may be silent: it asks several times in that
--       time
--       20 prefix of the strings `late`
-- Reply {"taken", count, now, {field, value, ...} of the run record}
--       {"entered", attempt, fence, holds}   the owner's committed attempt has the node
--       {"busy", now, pttl, type, value, {field, value, ...} of the record, position or 0, {JSON of
--        some shares}, for how many ms
--        readers are kept out for a writer}
--       {"refused", now, {field, value, ...} of the run record}   denied by the start in this
--        node's run record
--       {"not-held"}              ARGV[5] was set and the owner does not hold the node
--       {"otherwise"}             the owner holds a share, and the request is not to read
--       {"twice"}                 this very attempt has the node: two of the nodes are one server
--       {"layout", version}       a newer dlock wrote the record
--       {"late"}                  to an attempt that was undone; no client reads it
--
-- Worst cases:
-- - An earlier attempt of this owner took the node, its reply was lost, and it was never committed.
--   This attempt takes over with a new count, so that a commit of the earlier attempt is refused.
-- - The server is out of memory half-way. Nothing is rolled back, so the string is written last,
--   together with its end. An existing string gets its end before the share that needs it is
--   written.
-- - Readers arrive in a stream. A waiter for the whole lock keeps out later readers, until it
--   leaves or is silent: it was killed. One that was only stopped joins the queue again. A reader
--   that came before the writer on some nodes only is kept out by the others. The writer waits only
--   for holders, so no two wait for each other.

local lock, counter, record_key, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local shares, ends_key, line = KEYS[9], KEYS[10], KEYS[11]
local owner, hold, attempt, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local reenter, join, queued, reads = ARGV[5] == '1', ARGV[6] == '1', ARGV[7] == '1', ARGV[16] == '1'
local now, us = clock()
local ends = now + ttl
local mine_queue, other_queue = reads and line or queue, reads and queue or line

local kind, value = read_lock(lock)
local readers = kind ~= 'none' and has_readers(value, shares)
local own = readers and share_of(value, shares, owner)
local record, flat
if own then
  record = own
elseif kind ~= 'none' then
  record, flat = read_record(record_key)
end

-- Returns for how many ms an earlier writer keeps readers out.
local function kept_out()
  local mine = redis.call('ZSCORE', line, hold) or whole(us)
  for _ = 1, 8 do
    local first = redis.call('ZRANGEBYSCORE', queue, '-inf', '(' .. mine, 'LIMIT', 0, 1)[1]
    if not first then
      break
    end
    local seen = tonumber(string.match(redis.call('HGET', waiters, first) or '', '^%d+')) or 0
    local silence = tonumber(redis.call('HGET', waiters, 'silence:' .. first)) or 15000
    if seen + silence > now then
      return math.min(seen + silence - now, silence)
    end
    leave_queue(queue, waiters, first)
  end
  return 0
end

local function busy(kept)
  local left, place, some = redis.call('PTTL', lock), 0, {}
  if join and (left > 0 or kept > 0) then
    place = join_queue(mine_queue, waiters, hold, ARGV[9], now, us)
    if not reads then
      redis.pcall('HSET', waiters, 'silence:' .. hold, ARGV[19])
    end
    -- Adds the earlier waiters of the other queue. The position is informative: a failure is
    -- ignored.
    local since = place > 0 and redis.pcall('ZSCORE', mine_queue, hold)
    local before = type(since) == 'string' and redis.pcall('ZCOUNT', other_queue, '-inf', '('
        .. since)
    place = type(before) == 'number' and place + before or place
  end
  local owners = readers and redis.call('ZRANGE', ends_key, 0, 31, 'REV') or {}
  if #owners > 0 then
    some = redis.call('HMGET', shares, unpack(owners))
  end
  return proven(record_key, { 'busy', now, left, kind, value, flat or {}, place, some, kept })
end

local mine = string.sub(value, 1, #owner + 1) == owner .. ':'
if kind ~= 'none' then
  if value == owner .. ':' .. attempt or (own and own.attempt == attempt) then
    return { 'twice' }
  end
  if is_newer(record) then
    return { 'layout', record.v }
  end
  if own and own.fence and not reads and share_ends(own, now) > now then
    return proven(record_key, { 'otherwise' })
  end
  local undone = record.attempt and string.find(ARGV[18], record.attempt, 1, true)
  if record.fence and not undone and (own and share_ends(own, now) > now or is_ours(record, value,
      owner)) then
    local others, latest, ended = other_holds(record, hold, now)
    -- A repeated request must not shorten a hold that was extended since.
    ends = math.max(ends, (live_hold(record, hold, now)) or 0)
    if own then
      for _, field in ipairs(ended) do
        own[field] = nil
      end
      own['hold:' .. hold] = whole(ends) .. ':' .. ARGV[4]
      redis.call('PEXPIREAT', lock, whole(math.max(ends, end_of(lock) or 0)))
      save_share(shares, ends_key, own, math.max(ends, latest))
      settle(lock, shares, ends_key, KEYS[6], KEYS[7], now)
    else
      latest = math.max(ends, end_of(lock) or 0)
      redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. ARGV[4])
      redis.call('PEXPIREAT', lock, whole(latest))
      redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
      if #ended > 0 then
        redis.pcall('HDEL', record_key, unpack(ended))
      end
    end
    if queued then
      leave_queue(mine_queue, waiters, hold)
    end
    return { 'entered', record.attempt, record.fence, others + 1 }
  end
  if not mine and not (reads and readers) then
    return reenter and proven(record_key, { 'not-held' }) or busy(0)
  end
end
if reenter then
  return proven(record_key, { 'not-held' })
end

local starts, starts_flat = read_record(KEYS[8])
if ARGV[17] ~= '1' and judge(starts, read_terms(10), now, hold) then
  return proven(record_key, { 'refused', now, starts_flat })
end
if reads and not own and not mine then
  local kept = kept_out()
  if kept > 0 then
    return busy(kept)
  end
end

if redis.call('GET', ARGV[20] .. attempt) then
  return { 'late' }
end

-- Never below the time in us, so that a node that lost its data repeats no count.
local count = redis.call('INCR', counter)
if count < us then
  count = us
  redis.call('SET', counter, whole(count))
end
if count >= 9007199254740992 then
  return redis.error_reply('FENCE the counter is beyond 2^53')
end
-- A value at the record's key that is no hash is no record of dlock's.
local vanished = kind == 'none' and redis.call('TYPE', record_key).ok == 'hash'
    and read_record(record_key) or {}
local gone = take_out(shares, ends_key, now, not readers)
if reads then
  local share = {
    v = MAJOR .. '.2', owner = owner, attempt = attempt, count = whole(count), since = whole(now),
        renewed = whole(now),
    root = hold, detached = ARGV[8], ['hold:' .. hold] = whole(ends) .. ':' .. ARGV[4],
        meta = ARGV[9] ~= '' and ARGV[9] or nil,
  }
  if readers then
    redis.call('PEXPIREAT', lock, whole(math.max(ends, end_of(lock) or 0)))
    save_share(shares, ends_key, share, ends)
    settle(lock, shares, ends_key, KEYS[6], KEYS[7], now)
  else
    redis.call('DEL', record_key)
    value = 'shared:' .. attempt
    redis.call('HSET', shares, 'lock', value)
    save_share(shares, ends_key, share, ends)
    redis.call('PEXPIREAT', shares, whole(ends + KEEP))
    redis.call('PEXPIREAT', ends_key, whole(ends + KEEP))
    redis.call('SET', lock, value, 'PXAT', whole(ends))
  end
else
  local fields = {
    'v', MAJOR .. '.2', 'owner', owner, 'attempt', attempt, 'count', whole(count), 'since',
        whole(now), 'renewed', whole(now),
    'root', hold, 'detached', ARGV[8], 'hold:' .. hold, whole(ends) .. ':' .. ARGV[4],
  }
  if ARGV[9] ~= '' then
    fields[#fields + 1] = 'meta'
    fields[#fields + 1] = ARGV[9]
  end
  redis.call('DEL', record_key)
  redis.call('HSET', record_key, unpack(fields))
  redis.call('PEXPIREAT', record_key, whole(ends + KEEP))
  redis.call('SET', lock, owner .. ':' .. attempt, 'PXAT', whole(ends))
end
remember_vanished(vanished, KEYS[6], KEYS[7], now)
for _, share in ipairs(gone) do
  remember_vanished(share, KEYS[6], KEYS[7], now)
end
return { 'taken', whole(count), now, starts_flat }
