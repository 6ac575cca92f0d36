-- Phase 2 on one node: writes the fence if the counted attempt still has the node, and records the
-- start.
--
-- KEYS  1 lock  2 fence counter  3 record  4 starts  5 shares  6 queue  7 waiters  8 line
-- ARGV  1 owner   2 attempt   3 this node's count in phase 1
--       4 the fence: the highest count of all   5 place   6 skew guard in ms   7 at-least in ms
--       8 once: window in ms   9 retries of failed runs   10 "1": of crashed ones   11 hold
--       12 "1": it may be in the queue
-- Reply {"committed"} | {"lost"}
--
-- Worst cases: the node was lost since phase 1 and another owner has it, or another attempt of this
-- owner with another count: refused. A reader's share has ended while others keep the string: its
-- own end shows it. Another reader has this fence, each with the highest count from different
-- nodes: refused. The reply is lost and the request repeated: the same values are written again.

local lock, counter, record_key, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local fence, now = ARGV[4], (clock())
local _, value = read_lock(lock)
local share = share_of(value, shares, ARGV[1])
local record = share or read_record(record_key)
if record.attempt ~= ARGV[2] or record.count ~= ARGV[3] or is_newer(record) then
  return { 'lost' }
end
if share and share_ends(share, now) <= now or not share and not is_ours(record, value, ARGV[1]) then
  return { 'lost' }
end
local fences
if share and share.fence ~= fence then
  fences = with_fence(shares, fence)
  if not fences then
    return { 'lost' }
  end
end
if (tonumber(redis.call('GET', counter)) or 0) < tonumber(fence) then
  redis.call('SET', counter, fence)
end
if fences then
  share.fence = fence
  redis.call('HSET', shares, 'fences', fences, ARGV[1], cjson.encode(share))
elseif not share then
  if record.fence ~= fence then
    begin(KEYS[4], read_record(KEYS[4]), read_terms(5), fence, now, record.meta or '', ARGV[11])
  end
  redis.call('HSET', record_key, 'fence', fence)
end
if ARGV[12] == '1' then
  leave_queue(share and KEYS[8] or KEYS[6], KEYS[7], ARGV[11])
end
return { 'committed' }
