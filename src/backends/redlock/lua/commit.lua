-- Phase 2 on one node: writes the fence where the attempt that it was counted for still has the node, and takes down the start.
--
-- KEYS  1 lock  2 fence counter  3 record  4 starts
-- ARGV  1 owner  2 attempt  3 what phase 1 counted here  4 the fence: the highest count of all
--       5 place  6 skew guard in ms  7 at-least in ms  8 once: window in ms  9 retries of failed runs  10 "1": of crashed ones
-- Reply {"committed"} | {"lost"}
--
-- Worst cases: the node was lost since phase 1 and taken by another, or taken anew by this owner (another attempt: refused,
-- since its count is another); the answer is lost and this is sent again (the same is written again).

local lock, counter, record_key = KEYS[1], KEYS[2], KEYS[3]
local _, value = read_lock(lock)
local record = read_record(record_key)
if record.attempt ~= ARGV[2] or record.count ~= ARGV[3] or is_newer(record) or not is_ours(record, value, ARGV[1]) then
  return { 'lost' }
end
if (tonumber(redis.call('GET', counter)) or 0) < tonumber(ARGV[4]) then
  redis.call('SET', counter, ARGV[4])
end
if record.fence ~= ARGV[4] then
  begin(KEYS[4], read_record(KEYS[4]), read_terms(5), ARGV[4], (clock()), record.meta or '')
end
redis.call('HSET', record_key, 'fence', ARGV[4])
return { 'committed' }
