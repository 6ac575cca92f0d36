-- Phase 1 on one node: takes it if it is free, enters it for its owner, or says who has it and joins the queue.
--
-- KEYS  1 lock  2 fence counter  3 record  4 queue (zset: hold by arrival in us)  5 waiters (hash: hold -> refreshed:JSON)
--       6 runs   7 runs that ended badly   8 starts
-- ARGV  1 owner  2 hold  3 attempt, never sent twice  4 ttl in ms  5 "1": enter the owner's hold only
--       6 "1": join the queue if busy  7 "1": this hold may be in the queue  8 "1": detached  9 metadata as JSON, or ""
--       10 place  11 skew guard in ms  12 at-least in ms  13 once: window in ms  14 retries of failed runs  15 "1": of crashed ones
-- Reply {"taken", count}
--       {"entered", attempt, fence, holds}   the owner has it, committed
--       {"busy", now, pttl, type, value, {field, value, ...} of the record, place or 0}
--       {"refused", …}            as `judge` says
--       {"not-held"}              ARGV[5] was set and the owner does not hold it
--       {"twice"}                 this very attempt has it: two of the nodes are one server
--       {"layout", version}       a newer dlock's
--
-- Worst cases: an earlier attempt of this owner whose answer was lost took the node and was never committed (it is taken over,
-- with a new count, so that a commit of the earlier one is refused); the server is out of memory half-way (nothing is rolled
-- back: the string is written last, together with its end).

local lock, counter, record_key, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, hold, attempt, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local reenter, join, queued = ARGV[5] == '1', ARGV[6] == '1', ARGV[7] == '1'
local now, us = clock()
local ends = now + ttl

local kind, value = read_lock(lock)
local mine = string.sub(value, 1, #owner + 1) == owner .. ':'
if kind ~= 'none' then
  if value == owner .. ':' .. attempt then
    return { 'twice' }
  end
  local record, flat = read_record(record_key)
  if is_newer(record) then
    return { 'layout', record.v }
  end
  if is_ours(record, value, owner) and record.fence then
    local others, _, ended = other_holds(record, hold, now)
    local latest = math.max(ends, now + redis.call('PTTL', lock))
    -- Asked again after it was extended, the hold keeps what it was given.
    ends = math.max(ends, (live_hold(record, hold, now)) or 0)
    redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. ARGV[4])
    redis.call('PEXPIREAT', lock, whole(latest))
    redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
    if #ended > 0 then
      redis.pcall('HDEL', record_key, unpack(ended))
    end
    if queued then
      leave_queue(queue, waiters, hold)
    end
    return { 'entered', record.attempt, record.fence, others + 1 }
  end
  if not mine then
    if reenter then
      return { 'not-held' }
    end
    local left = redis.call('PTTL', lock)
    return { 'busy', now, left, kind, value, flat, (join and left > 0) and join_queue(queue, waiters, hold, ARGV[9], now, us) or 0 }
  end
end
if reenter then
  return { 'not-held' }
end

local refused = judge(read_record(KEYS[8]), read_terms(10), now)
if refused then
  return refused
end

-- Never below the time in us, so that a node that lost its data doesn't repeat a count.
local count = redis.call('INCR', counter)
if count < us then
  count = us
  redis.call('SET', counter, whole(count))
end
if count >= 9007199254740992 then
  return redis.error_reply('FENCE the counter is beyond 2^53')
end
local record = {
  'v', MAJOR .. '.0', 'owner', owner, 'attempt', attempt, 'count', whole(count), 'since', whole(now), 'renewed', whole(now),
  'root', hold, 'detached', ARGV[8], 'hold:' .. hold, whole(ends) .. ':' .. ARGV[4],
}
if ARGV[9] ~= '' then
  record[#record + 1] = 'meta'
  record[#record + 1] = ARGV[9]
end
-- Whatever else lies under that name is nobody's record.
local vanished = kind == 'none' and redis.call('TYPE', record_key).ok == 'hash' and read_record(record_key) or {}
redis.call('DEL', record_key)
redis.call('HSET', record_key, unpack(record))
redis.call('PEXPIREAT', record_key, whole(ends + KEEP))
redis.call('SET', lock, owner .. ':' .. attempt, 'PXAT', whole(ends))
if queued then
  leave_queue(queue, waiters, hold)
end
remember_vanished(vanished, KEYS[6], KEYS[7], now)
return { 'taken', whole(count) }
