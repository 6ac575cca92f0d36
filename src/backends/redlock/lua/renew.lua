-- Extends a hold on one node. Never creates one, and never moves the end of the hold or of the lock
-- backwards.
--
-- KEYS  1 lock  2 record  3 shares  4 their ends
-- ARGV  1 owner   2 hold   3 ttl in ms, or "" for the TTL that the hold was taken with
--       4 "go-on": refuse a hold marked for a break; "stop": extend it too, the holder has seen the mark; "look": likewise, not seen
-- Reply {"renewed", ttl, attempt, fence or ""} | {"shorter", ms left, attempt, fence or ""}
--       {"broken", mark, "1" if its holder has seen it} | {"not-held"} | {"layout", version}
-- A node whose phase 1 came too late to be counted has no fence. It is extended, since it keeps
-- others out, but proves nothing.

local lock, record_key = KEYS[1], KEYS[2]
local owner, hold = ARGV[1], ARGV[2]
local _, value = read_lock(lock)
local share = share_of(value, KEYS[3], owner)
if not share and string.sub(value, 1, #owner + 1) ~= owner .. ':' then
  return proven(record_key, { 'not-held' })
end
local record = share or read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local now = clock()
local held_until, taken_with = live_hold(record, hold, now)
if not (share or is_ours(record, value, owner)) or not held_until then
  return proven(record_key, { 'not-held' })
end
if record.mark then
  if ARGV[4] == 'go-on' then
    return { 'broken', record.mark, record.seen or '0' }
  elseif ARGV[4] == 'stop' and not record.seen then
    record.seen = '1'
    if share then
      redis.call('HSET', KEYS[3], owner, cjson.encode(share))
    else
      redis.call('HSET', record_key, 'seen', '1')
    end
  end
end
local ttl = tonumber(ARGV[3]) or taken_with
local ends = now + ttl
if ends < held_until then
  return proven(record_key, { 'shorter', held_until - now, record.attempt, record.fence or '' })
end
local latest = math.max(ends, end_of(lock) or 0)
redis.call('PEXPIREAT', lock, whole(latest))
if share then
  redis.call('PEXPIREAT', KEYS[3], whole(latest + KEEP))
  redis.call('PEXPIREAT', KEYS[4], whole(latest + KEEP))
  share['hold:' .. hold], share.renewed = whole(ends) .. ':' .. whole(taken_with), whole(now)
  save_share(KEYS[3], KEYS[4], share, share_ends(share, now))
  return { 'renewed', ttl, share.attempt, share.fence or '' }
end
redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
-- HSET only overwrites existing fields. If it failed, the caller would get the error and not rely
-- on the new end.
redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. whole(taken_with), 'renewed',
    whole(now))
return { 'renewed', ttl, record.attempt, record.fence or '' }
