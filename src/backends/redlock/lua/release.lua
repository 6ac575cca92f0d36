-- Releases a hold on one node; the last one frees the node.
--
-- KEYS  1 lock   2 record   3 runs   4 runs that ended badly   5 starts   6 shares   7 their ends
--       8 queue   9 waiters   10 line
-- ARGV  1 owner   2 hold   3 "1": also the holds nested in this one
--       4 the outcome, as the end of a history entry, or "" to record nothing   5 "1": it failed
--       6 the outcome for the run record, or ""
--       7 "1": it may still be in the queue of a node that did not grant it
--       8 the attempts to undo, or "" to release the hold with any attempt
--       9 prefix of the strings `late`   10 the attempts that are refused from now on, if they come
-- Reply {"released"} | {"still-held", count} | {"not-held"} | {"layout", version}
--
-- Worst case: an attempt is undone over a slow connection, and the request arrives after a later
-- attempt of the same hold was granted over another connection. ARGV[8] protects the later attempt.

local lock, record_key, shares, ends_key = KEYS[1], KEYS[2], KEYS[6], KEYS[7]
local owner, hold = ARGV[1], ARGV[2]
if ARGV[10] ~= '' then
  -- A server that is out of memory refuses a script's first write only. HDEL is allowed then, and
  -- changes nothing.
  redis.pcall('HDEL', record_key, '')
  for attempt in string.gmatch(ARGV[10], '%S+') do
    redis.pcall('SET', ARGV[9] .. attempt, '1', 'PX', LATE)
  end
end
if ARGV[7] == '1' then
  leave_queue(KEYS[8], KEYS[9], hold)
  leave_queue(KEYS[10], KEYS[9], hold)
end
local _, value = read_lock(lock)
local share = share_of(value, shares, owner)
if not share and string.sub(value, 1, #owner + 1) ~= owner .. ':' then
  return proven(record_key, { 'not-held' })
end
local record = share or read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local now = clock()
local undoes_another = ARGV[8] ~= '' and not string.find(ARGV[8], record.attempt or '-', 1, true)
if not (share or is_ours(record, value, owner)) or not live_hold(record, hold, now)
    or undoes_another then
  return proven(record_key, { 'not-held' })
end
-- The nesting of holds is not recorded. Only the first hold is known to enclose all others.
local whole_tree = ARGV[3] == '1' and record.root == hold
local others, latest = other_holds(record, hold, now)
local start = known_start(KEYS[5], ARGV[6])
if share and others > 0 and not whole_tree then
  share['hold:' .. hold] = nil
  -- A server that is out of memory refuses a script's first write only. PEXPIREAT is allowed then,
  -- so it comes first.
  redis.call('PEXPIREAT', ends_key, whole(latest + KEEP))
  save_share(shares, ends_key, share, latest)
  settle(lock, shares, ends_key, KEYS[3], KEYS[4], now)
  became(KEYS[5], record.fence, ARGV[6], start)
  return { 'still-held', others }
end
if others > 0 and not whole_tree then
  redis.call('HDEL', record_key, 'hold:' .. hold)
  -- The lock now lasts as long as the remaining holds: a killed inner hold must not keep the outer
  -- hold's TTL.
  redis.call('PEXPIREAT', lock, whole(latest))
  redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
  became(KEYS[5], record.fence, ARGV[6], start)
  return { 'still-held', others }
end
if share then
  drop_share(lock, shares, ends_key, share, KEYS[3], KEYS[4], now)
else
  redis.call('DEL', lock)
  redis.pcall('DEL', record_key)
end
became(KEYS[5], record.fence, ARGV[6], start)
if ARGV[4] ~= '' and record.fence then
  remember(KEYS[3], KEYS[4], past(record, now, ARGV[4]), ARGV[5] == '1')
end
return { 'released' }
