-- Takes a free lock, reenters it for its owner, or reports the holders and joins the queue.
--
-- KEYS  1 lock   2 fence counter   3 record   4 queue (zset: hold by arrival in us)
--       5 waiters (hash: hold -> refreshed:JSON)   6 runs   7 runs that ended badly   8 starts
--       9 shares   10 their ends   11 line   12 fair   13 fair-readers   14 late
-- ARGV  1 owner   2 hold   3 ttl in ms   4 "1": only reenter the owner's hold
--       5 "1": join the queue if busy   6 "1": this hold may be in the queue   7 "1": detached
--       8 metadata as JSON, or ""   9 place   10 skew guard in ms   11 at-least in ms
--       12 once: window in ms   13 retries of failed runs   14 "1": of crashed ones
--       15 "1": in fair order   16 prefix of the wake-up lists of `line`
--       17 the request's number, for `is_late`
-- Reply {"granted", fence, holds}
--       {"busy", now, pttl, {field, value, ...} of the lock, {field, value, ...} of the record,
--        position or 0, {shares}, for how many
--        ms the lock is kept for an earlier waiter, or 0}
--       {"otherwise", kind}       ARGV[4] was set and the owner has a share of this kind, "shared"
--        or "permits"
--       {"refused", …}            as `judge` returns it
--       {"not-held"}              ARGV[4] was set and the owner does not hold the lock
--       {"alien", type, pttl}     the key exists and is no hash
--       {"layout", version}       a newer dlock wrote the record
--       {"late"}                  to a request that was given up; no client reads it
--
-- The lock is busy until its last share ends, even if another library let the lock itself expire.
--
-- Worst cases:
-- - The reply is lost and the request repeated. The owner's field shows it: same fence, counted
--   once.
-- - The request arrives after the hold was granted to a later one, and even released. Its number
--   shows it.
-- - Memory or a right is missing half-way. Nothing is rolled back, so each command that the lock
--   needs succeeds on the record first: no lock without expiry. Nothing after the lock's own write
--   fails.

local lock, counter, record_key, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, hold, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local reenter, join, queued = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] == '1'
local field = owner .. ':1:write'
local now, us = clock()
local ends = now + ttl

-- Joins the queue, or `line` for a fair request. Returns the position.
local function wait_in_place()
  if ARGV[15] == '1' then
    return place_of(join_line(KEYS[11], KEYS[12], KEYS[13], waiters, hold, ARGV[8], now, us, 'x'),
        KEYS[11], queue, hold)
  end
  return place_of(join_queue(queue, waiters, hold, ARGV[8], now, us), queue, KEYS[11], hold)
end

-- Leaves the queue or `line`.
local function wait_no_more()
  if ARGV[15] == '1' then
    leave_line(KEYS[11], KEYS[12], KEYS[13], waiters, hold)
  else
    leave_queue(queue, waiters, hold)
  end
end

local kind = redis.call('TYPE', lock).ok
if kind ~= 'none' and kind ~= 'hash' then
  return proven(KEYS[3], { 'alien', kind, redis.call('PTTL', lock) })
end

-- Whether there may be shares, fair waiters or a later request. Their keys are read only then.
local number, others = tonumber(ARGV[17]), redis.call('EXISTS', KEYS[10], KEYS[12], KEYS[13],
    KEYS[14]) > 0
if (others or number > 1) and is_late(KEYS[14], number) then
  return { 'late' }
end

if kind == 'hash' then
  local record, flat = read_record(record_key)
  -- The record of an earlier owner of the lock counts for nothing.
  if is_newer(record) and (not record.owner or has_field(lock, record.owner .. ':1:write')) then
    return { 'layout', record.v }
  end
  local ours = has_field(lock, field)
  if ours and record.owner == owner then
    local others, _, ended = other_holds(record, hold, now)
    local latest = math.max(ends, end_of(lock) or 0)
    -- A repeated request must not shorten a hold that was extended since.
    ends = math.max(ends, (live_hold(record, hold, now)) or 0)
    redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. ARGV[3])
    redis.call('PEXPIREAT', lock, whole(latest))
    redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
    if #ended > 0 then
      redis.pcall('HDEL', record_key, unpack(ended))
    end
    if queued then
      wait_no_more()
    end
    return { 'granted', record.fence, others + 1 }
  end
  -- The owner's lock without its record, which was deleted from outside, is granted again below,
  -- with a new fence.
  if not ours then
    if reenter then
      local share = share_of(lock, KEYS[9], owner)
      return proven(lock, share and { 'otherwise', share.kind or '' } or { 'not-held' })
    end
    local fields = redis.call('HRANDFIELD', lock, 16, 'WITHVALUES')
    local place = join and wait_in_place() or 0
    return proven(lock, { 'busy', now, redis.call('PTTL', lock), fields, flat, place,
        some_shares(KEYS[9], KEYS[10]), 0 })
  end
end
if reenter then
  return proven(lock, { 'not-held' })
end

local shared_until = others and kind == 'none' and last_end(KEYS[10]) or 0
if shared_until > now then
  local place, some = join and wait_in_place() or 0, some_shares(KEYS[9], KEYS[10])
  return proven(lock, { 'busy', now, -2, {}, {}, place, some, shared_until - now })
end

local terms, starts = read_terms(9), read_record(KEYS[8])
local refused = judge(starts, terms, now, hold)
if refused then
  return proven(lock, refused)
end

local left = others and held_up(lock, counter, queue, waiters, KEYS[11], KEYS[12], KEYS[13], 'x',
    hold, now, us, ARGV[16])
if left then
  return proven(lock, { 'busy', now, -2, {}, {}, join and wait_in_place() or 0, {}, left })
end

-- A value at the record's key that is no hash is no record of dlock's. The reply for a busy lock
-- needs HRANDFIELD too: Redis 6.0, which lacks it, is refused before any write.
local beside = redis.pcall('HRANDFIELD', record_key)
if type(beside) == 'table' and not string.find(beside.err, 'WRONGTYPE', 1, true) then
  return beside
end

local fence = next_fence(counter, us)
if not fence then
  return redis.error_reply('FENCE the counter is beyond 2^53')
end
local record = {
  'v', MAJOR .. '.2', 'owner', owner, 'fence', fence, 'since', whole(now), 'renewed', whole(now),
  'root', hold, 'detached', ARGV[7], 'hold:' .. hold, whole(ends) .. ':' .. ARGV[3],
}
if ARGV[8] ~= '' then
  record[#record + 1] = 'meta'
  record[#record + 1] = ARGV[8]
end
local vanished = type(beside) == 'string' and read_record(record_key) or {}
if beside then
  redis.call('DEL', record_key)
end
redis.call('HSET', record_key, unpack(record))
redis.call('PEXPIREAT', record_key, whole(ends + KEEP))
begin(KEYS[8], starts, terms, fence, now, ARGV[8], hold)
redis.call('HSET', lock, 'mode', 'write', field, '1')
redis.call('PEXPIREAT', lock, whole(ends))
if queued then
  wait_no_more()
end
remember_vanished(vanished, KEYS[6], KEYS[7], now)
if others then
  sweep(lock, KEYS[9], KEYS[10], KEYS[6], KEYS[7], now)
end
return { 'granted', fence, 1 }
