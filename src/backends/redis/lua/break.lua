-- Marks the hold with this fence for a break, or takes the lock away from it at once.
--
-- KEYS  1 lock   2 record   3 queue   4 wake-up list   5 runs   6 runs that ended badly   7 shares
--       8 their ends   9 line   10 the common wake-up list of `line`
-- ARGV  1 fence   2 the mark as JSON   3 "1": at once
--       4 channel of the waiters for Redisson's plain lock   5 channel for its read-write lock
--       6 "1": in a cluster   7 prefix of the wake-up lists of `line`
--       8 queue of Redisson's fair lock
-- Reply {"done"} | {"changed"} | {"layout", version}

local lock, record_key, queue, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local record = read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local found, shared = hold_with(ARGV[1], lock, record, KEYS[7])
if not found then
  return { 'changed' }
end
record = found
local share = shared and found
if share and ARGV[3] ~= '1' then
  share.mark = ARGV[2]
  redis.call('HSET', KEYS[7], share.owner, cjson.encode(share))
  return { 'done' }
end
if ARGV[3] ~= '1' then
  redis.call('HSET', record_key, 'mark', ARGV[2])
  return { 'done' }
end
local free = true
if share then
  free = drop_share(lock, KEYS[7], KEYS[8], share, (clock()))
else
  redis.call('DEL', lock)
  redis.pcall('DEL', record_key)
end
if free then
  wake_one(queue, wake)
  tell_redisson(ARGV[4], ARGV[5], ARGV[8], ARGV[6])
end
wake_line(KEYS[9], ARGV[7], KEYS[10])
remember(KEYS[5], KEYS[6], past(record, (clock()), broken(ARGV[2])), true)
return { 'done' }
