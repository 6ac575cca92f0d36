-- Extends a hold; never creates one, and never moves its end or the lock's backwards.
--
-- KEYS  1 lock  2 record, or 2 shares  3 their ends: only what is there, or a slot that is being moved could not be asked
-- ARGV  1 owner  2 hold  3 ttl in ms, or "" for the one that the hold was taken with
--       4 "go-on"; "stop": also if the hold is to be broken, which its holder has seen; "look": likewise, and it has not
-- Reply {"renewed", ttl, fence} | {"shorter", ms left} | {"broken", mark} | {"not-held"} | {"layout", version}
--       {"otherwise"}  it is a share, if anything: ask with its keys
--
-- Worst cases: the hold ended while the request was on its way (its own end says so, not only the lock's);
-- the server is out of memory (PEXPIREAT is allowed then, and a script that has written once may go on writing,
-- so it comes first even where the lock lasts longer already).

local lock, record_key = KEYS[1], KEYS[2]
local owner, hold = ARGV[1], ARGV[2]
local written, share = #KEYS == 2 and has_field(lock, owner .. ':1:write'), #KEYS > 2 and share_of(lock, KEYS[2], owner)
if not written and not share then
  local mode = #KEYS == 2 and redis.call('TYPE', lock).ok == 'hash' and redis.call('HGET', lock, 'mode')
  return { (mode == 'read' or mode == 'permits') and 'otherwise' or 'not-held' }
end
local record = share or read_record(record_key)
if is_newer(record) then
  return { 'layout', record.v }
end
local now = clock()
local held_until, taken_with = live_hold(record, hold, now)
if record.owner ~= owner or not held_until then
  return { 'not-held' }
end
if record.mark then
  if ARGV[4] == 'go-on' then
    return { 'broken', record.mark }
  elseif ARGV[4] == 'stop' and not record.seen then
    record.seen = '1'
    if share then
      redis.call('HSET', KEYS[2], owner, cjson.encode(share))
    else
      redis.call('HSET', record_key, 'seen', '1')
    end
  end
end
local ttl = tonumber(ARGV[3]) or taken_with
local ends = now + ttl
if ends < held_until then
  return { 'shorter', held_until - now }
end
if share then
  keep_lock(lock, ends, now)
  local _, others = other_holds(share, hold, now)
  share['hold:' .. hold], share.renewed = whole(ends) .. ':' .. whole(taken_with), whole(now)
  save_share(lock, KEYS[2], KEYS[3], share, math.max(ends, others))
  return { 'renewed', ttl, share.fence }
end
local latest = math.max(ends, now + redis.call('PTTL', lock))
redis.call('PEXPIREAT', lock, whole(latest))
redis.call('PEXPIREAT', record_key, whole(latest + KEEP))
-- Only a value: the fields are there. Were it to fail, the caller would be told so, and would not count on the time.
redis.call('HSET', record_key, 'hold:' .. hold, whole(ends) .. ':' .. whole(taken_with), 'renewed', whole(now))
return { 'renewed', ttl, record.fence }
