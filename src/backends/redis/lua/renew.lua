-- Extends a hold. Never creates one, and never moves the end of the hold or of the lock backwards.
--
-- KEYS  1 lock
-- ARGV  1 owner   2 hold   3 ttl in ms, or "" for the TTL that the hold was taken with
--       4 "go-on": refuse a hold marked for a break; "stop": extend it too, the holder has seen the mark; "look": likewise, not seen
--       5 record   6 shares   7 their ends
-- Reply {"renewed", ttl, fence} | {"shorter", ms left} | {"broken", mark, "1" if its holder has
--       seen it} | {"not-held"} | {"layout", version}
--
-- Worst cases: the hold ended while the request was on its way (its own end shows it, even if the
-- lock lasts longer); the server is out of memory (it allows PEXPIREAT, and lets a script that has
-- written go on writing, so PEXPIREAT comes first even if the lock already lasts longer).

local lock, record_key, shares, ends_key = KEYS[1], ARGV[5], ARGV[6], ARGV[7]
local owner, hold = ARGV[1], ARGV[2]

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
local held_until, taken_with = live_hold(record, hold, now)
if record.owner ~= owner then
  assert_together(lock, record_key)
end
if record.owner ~= owner or not held_until then
  return proven(lock, { 'not-held' })
end
if record.mark then
  if ARGV[4] == 'go-on' then
    return { 'broken', record.mark, record.seen or '0' }
  elseif ARGV[4] == 'stop' and not record.seen then
    record.seen = '1'
    if share then
      redis.call('HSET', shares, owner, cjson.encode(share))
    else
      redis.call('HSET', record_key, 'seen', '1')
    end
  end
end
local ttl = tonumber(ARGV[3]) or taken_with
local ends = now + ttl
if ends < held_until then
  return proven(lock, { 'shorter', held_until - now })
end
if share then
  keep_lock(lock, ends)
  local _, others = other_holds(share, hold, now)
  share['hold:' .. hold], share.renewed = whole(ends) .. ':' .. whole(taken_with), whole(now)
  save_share(lock, shares, ends_key, share, math.max(ends, others))
  return { 'renewed', ttl, share.fence }
end
local latest = math.max(ends, end_of(lock) or 0)
redis.call('PEXPIREAT', lock, whole(latest))
redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
-- HSET only overwrites existing fields. If it failed, the caller would get the error and not rely
-- on the new end.
redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. whole(taken_with), 'renewed',
    whole(now))
return { 'renewed', ttl, record.fence }
