-- Releases a hold; the last one frees the lock and wakes one waiter.
--
-- KEYS  1 lock
-- ARGV  1 owner   2 hold   3 "1": also the holds nested in this one
--       4 channel of the waiters for Redisson's plain lock   5 channel for its read-write lock
--       6 queue of its fair lock   7 "1": in a cluster
--       8 the outcome, as the end of a history entry, or "" to record nothing   9 "1": it failed
--       10 the outcome for the run record, or ""   11 prefix of the wake-up lists of `line`
--       12 record   13 queue   14 wake-up list   15 runs   16 runs that ended badly   17 starts
--       18 shares   19 their ends   20 line   21 the common wake-up list of `line`
--       22 and 23, if requests of this hold went unanswered: its string `late`, and the number below which its requests are refused
-- Reply {"released"} | {"still-held", count} | {"not-held"} | {"layout", version}
--
-- Worst cases: the lock was deleted and another owner took it (the owner's field is gone: nothing
-- is changed); memory, or the right to publish or push, is missing (DEL comes first, and no later
-- failure undoes it).

local lock, record_key, starts, shares, ends_key = KEYS[1], ARGV[12], ARGV[17], ARGV[18], ARGV[19]
local owner, hold = ARGV[1], ARGV[2]

if ARGV[22] then
  -- A server that is out of memory refuses a script's first write only. HDEL is allowed then, and
  -- changes nothing.
  redis.pcall('HDEL', lock, '')
  redis.pcall('SET', ARGV[22], ARGV[23], 'PX', LATE)
end

local written = has_field(lock, owner .. ':1:write')
local share = not written and share_of(lock, shares, owner)
if not written then
  assert_together(lock, shares, ends_key)
end
if not written and not share then
  return proven(lock, { 'not-held' })
end
local record = share or read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local now = clock()
if record.owner ~= owner then
  assert_together(lock, record_key)
end
if record.owner ~= owner or not live_hold(record, hold, now) then
  return proven(lock, { 'not-held' })
end
-- The nesting of holds is not recorded. Only the first hold is known to enclose all others.
local whole_tree = ARGV[3] == '1' and record.root == hold
local others, latest = other_holds(record, hold, now)
local start = known_start(starts, ARGV[10])
if share and others > 0 and not whole_tree then
  share['hold:' .. hold] = nil
  -- A server that is out of memory refuses a script's first write only. PEXPIREAT is allowed then,
  -- so it comes first.
  redis.call('PEXPIREAT', ends_key, whole(latest + KEEP))
  save_share(lock, shares, ends_key, share, latest)
  -- The rest of the share lasts as long as its own holds, as below.
  settle_lock(lock, shares, ends_key, now)
  return { 'still-held', others }
end
if others > 0 and not whole_tree then
  redis.call('HDEL', record_key, 'hold:' .. hold)
  -- The lock now lasts as long as the remaining holds: a killed inner hold must not keep the outer
  -- hold's TTL.
  redis.call('PEXPIREAT', lock, whole(latest))
  redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
  became(starts, record.fence, ARGV[10], start)
  return { 'still-held', others }
end
local free = true
if share then
  free = drop_share(lock, shares, ends_key, share, now)
else
  redis.call('DEL', lock)
  redis.pcall('DEL', record_key)
end
if free then
  wake_one(ARGV[13], ARGV[14])
  tell_redisson(ARGV[4], ARGV[5], ARGV[6], ARGV[7])
end
-- A reader that leaves while others still read makes no room.
if free or share.kind == 'permits' then
  wake_line(ARGV[20], ARGV[11], ARGV[21])
end
became(starts, record.fence, ARGV[10], start)
if ARGV[8] ~= '' then
  remember(ARGV[15], ARGV[16], past(record, now, ARGV[8]), ARGV[9] == '1')
end
return { 'released' }
