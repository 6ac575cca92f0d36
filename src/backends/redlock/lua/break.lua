-- Marks a hold as to be broken on one node, or takes the node away from it at once. Only the hold with this fence.
--
-- KEYS  1 lock  2 record  3 runs  4 runs that ended badly
-- ARGV  1 fence  2 the mark as JSON  3 the same as the end of a line of the history  4 "1": at once
-- Reply {"done"} | {"changed"} | {"layout", version}

local lock, record_key = KEYS[1], KEYS[2]
local _, value = read_lock(lock)
local record = read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
if record.fence ~= ARGV[1] or not record.owner or not is_ours(record, value, record.owner) then
  return { 'changed' }
end
if ARGV[4] ~= '1' then
  redis.call('HSET', record_key, 'mark', ARGV[2], 'broken', ARGV[3])
  return { 'done' }
end
redis.call('DEL', lock)
redis.pcall('DEL', record_key)
remember(KEYS[3], KEYS[4], past(record, (clock()), ARGV[3]), true)
return { 'done' }
