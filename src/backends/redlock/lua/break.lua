-- Marks the hold with this fence for a break on one node, or takes the node away from it at once.
--
-- KEYS  1 lock  2 record  3 runs  4 runs that ended badly  5 shares  6 their ends
-- ARGV  1 fence  2 the mark as JSON  3 "1": at once
-- Reply {"done"} | {"changed"} | {"layout", version}

local lock, record_key, shares = KEYS[1], KEYS[2], KEYS[5]
local now = clock()
local _, value = read_lock(lock)
local record = read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local share = has_readers(value, shares) and share_with(shares, ARGV[1])
if share and share_ends(share, now) > now then
  if ARGV[3] == '1' then
    drop_share(lock, shares, KEYS[6], share, KEYS[3], KEYS[4], now)
    remember(KEYS[3], KEYS[4], past(share, now, broken(ARGV[2])), true)
  else
    share.mark = ARGV[2]
    redis.call('HSET', shares, share.owner, cjson.encode(share))
  end
  return { 'done' }
end
if record.fence ~= ARGV[1] or not record.owner or not is_ours(record, value, record.owner) then
  return { 'changed' }
end
if ARGV[3] ~= '1' then
  redis.call('HSET', record_key, 'mark', ARGV[2])
  return { 'done' }
end
redis.call('DEL', lock)
redis.pcall('DEL', record_key)
remember(KEYS[3], KEYS[4], past(record, now, broken(ARGV[2])), true)
return { 'done' }
