-- Marks a hold as to be broken, or takes the lock away from it at once. Only the hold with this fence.
--
-- KEYS  1 lock  2 record  3 queue  4 wake-up list  5 runs  6 runs that ended badly
-- ARGV  1 fence  2 the mark as JSON  3 the same as the end of a line of the history  4 "1": at once
--       5 channel that waits for Redisson's plain lock  6 channel that waits for its read-write lock  7 "1": in a cluster
-- Reply {"done"} | {"changed"} | {"layout", version}

local lock, record_key, queue, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local record = read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
if record.fence ~= ARGV[1] or not record.owner or not has_field(lock, record.owner .. ':1:write') then
  return { 'changed' }
end
if ARGV[4] ~= '1' then
  redis.call('HSET', record_key, 'mark', ARGV[2], 'broken', ARGV[3])
  return { 'done' }
end
redis.call('DEL', lock)
redis.pcall('DEL', record_key)
wake_one(queue, wake)
tell_redisson(ARGV[5], ARGV[6], ARGV[7])
remember(KEYS[5], KEYS[6], past(record, (clock()), ARGV[3]), true)
return { 'done' }
