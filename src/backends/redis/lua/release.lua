-- Gives a hold back; frees the lock with the last one and wakes one of those who wait.
--
-- KEYS  1 lock  2 record  3 queue  4 wake-up list  5 runs  6 runs that ended badly  7 starts  8 shares  9 their ends  10 line
-- ARGV  1 owner  2 hold  3 "1": also the holds nested in this one
--       4 channel that waits for Redisson's plain lock  5 channel that waits for its read-write lock  6 "1": in a cluster
--       7 how it ended, as the end of a line of the history, or "" to remember nothing  8 "1": badly
--       9 what became of its start, or ""  10 what the wake-up lists of those in the line begin with
-- Reply {"released"} | {"still-held", count} | {"not-held"} | {"layout", version}
--
-- Worst cases: somebody deleted the lock and another took it (the owner's field is gone: nothing is touched);
-- a right to publish or to push is missing, or memory (DEL comes first, and what follows can't undo it).

local lock, record_key, queue, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, hold = ARGV[1], ARGV[2]
local written = has_field(lock, owner .. ':1:write')
local share = not written and share_of(lock, KEYS[8], owner)
if not written and not share then
  return { 'not-held' }
end
local record = share or read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local now = clock()
if record.owner ~= owner or not live_hold(record, hold, now) then
  return { 'not-held' }
end
-- Who entered whom is not recorded: only the first hold is known to enclose all others.
local whole_tree = ARGV[3] == '1' and record.root == hold
local others, latest = other_holds(record, hold, now)
if share and others > 0 and not whole_tree then
  share['hold:' .. hold] = nil
  save_share(lock, KEYS[8], KEYS[9], share, latest)
  -- What is left lasts as long as its own holds, as below.
  settle_lock(lock, KEYS[9])
  return { 'still-held', others }
end
if others > 0 and not whole_tree then
  redis.call('HDEL', record_key, 'hold:' .. hold)
  -- What is left lasts as long as its own holds: an inner one that is killed must not keep the outer one's time.
  redis.call('PEXPIREAT', lock, whole(latest))
  redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
  became(KEYS[7], record.fence, ARGV[9])
  return { 'still-held', others }
end
local free = true
if share then
  free = drop_share(lock, KEYS[8], KEYS[9], share)
else
  redis.call('DEL', lock)
  redis.pcall('DEL', record_key)
end
if free then
  wake_one(queue, wake)
  tell_redisson(ARGV[4], ARGV[5], ARGV[6])
end
-- A reader that leaves others behind makes no room for anybody.
if free or share.kind == 'permits' then
  wake_line(KEYS[10], ARGV[10])
end
became(KEYS[7], record.fence, ARGV[9])
if ARGV[7] ~= '' then
  remember(KEYS[5], KEYS[6], past(record, now, ARGV[7]), ARGV[8] == '1')
end
return { 'released' }
