-- Takes a share of the lock, as a reader or as a permit; reenters it for its owner, or reports the
-- holders and joins `line`.
--
-- KEYS  as in acquire.lua
-- ARGV  1 owner   2 hold   3 ttl in ms   4 "1": only reenter the owner's hold
--       5 "1": join `line` if busy   6 "1": this hold may be in `line`   7 "1": detached
--       8 metadata as JSON, or ""   9 the number of permits, or "" for a reader
--       10 prefix of the wake-up lists of `line`   11 "1": in fair order
--       12 the common wake-up list of `line`   13 that of the queue
--       14 the request's number, for `is_late`
-- Reply as acquire.lua, but {"granted", fence, holds, number of the permit or -1}, and "busy" ends
--       with the ms until there may be room:
--       kept for an earlier waiter, until the last share of a lost lock ends, or until the first
--       permit ends; or 0.
--       {"otherwise", kind}: the owner holds the lock in another mode, "exclusive", "shared" or
--        "permits".
--
-- Worst cases, in addition to those of acquire.lua:
-- - A reader crashed. Its share ends at its own end, whatever the lock's TTL is; the next request
--   removes and archives it. The lock never ends before a share; after a release it ends exactly
--   with its last share. So a lock with only crashed readers ends with the last.
-- - Readers arrive in a stream. A waiting exclusive request blocks later readers; once the last
--   reader has left, the writer has one second to take the lock (`held_up`).
-- - Redisson's readers hold the lock too. Their TTL is never shortened. If their lock has no TTL,
--   it stays without one.
-- - Redisson's watchdog, or a forced unlock, deleted the lock under dlock's readers. The next
--   reader recreates it, to the end of the last share; until then no permit is granted. A hash with
--   fields that are not readers' or permits' is left unchanged.
-- - The number of permits was changed. Current holds stay. There is room once fewer permits are
--   held than the request's number, and then a permit number below it is free, since all held
--   numbers differ.

local lock, counter, queue, waiters, starts = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[8]
local runs, bad, shares, ends_key, line = KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11]
local fair, fair_readers = KEYS[12], KEYS[13]
local owner, hold, ttl, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[9])
local reenter, join, queued = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] == '1'
local now, us = clock()
local ends = now + ttl
local as = most and 'p' .. ARGV[9] or 's'

local kind = redis.call('TYPE', lock).ok
if kind ~= 'none' and kind ~= 'hash' then
  return proven(KEYS[3], { 'alien', kind, redis.call('PTTL', lock) })
end
if is_late(KEYS[14], tonumber(ARGV[14])) then
  return { 'late' }
end
-- The reply for a busy lock needs HRANDFIELD. Redis 6.0, which lacks it, is refused before any
-- write.
local able = kind == 'none' and redis.pcall('HRANDFIELD', lock)
if able then
  return able
end
if has_field(lock, owner .. ':1:write') then
  return proven(lock, { 'otherwise', 'exclusive' })
end
local mode = kind == 'hash' and redis.call('HGET', lock, 'mode')
local values
if mode == 'read' or mode == 'permits' then
  values = values_of_shares(lock, mode)
  if not values then
    return proven(lock, { 'alien', kind, redis.call('PTTL', lock) })
  end
end
local share = kind == 'hash' and share_of(lock, shares, owner)
if share and is_newer(share) then
  return { 'layout', share.v }
end
if share and share.kind ~= (most and 'permits' or 'shared') then
  return proven(lock, { 'otherwise', share.kind })
end
if sweep(lock, shares, ends_key, runs, bad, now) then
  if settle_lock(lock, shares, ends_key, now) then
    kind, mode, values = 'none', nil, nil
  else
    values = values and values_of_shares(lock, mode) or values
  end
end
if share and select(2, other_holds(share, '', now)) > now then
  local others, latest, ended = other_holds(share, hold, now)
  for _, field in ipairs(ended) do
    share[field] = nil
  end
  -- A repeated request must not shorten a hold that was extended since.
  ends = math.max(ends, (live_hold(share, hold, now)) or 0)
  share['hold:' .. hold] = whole(ends) .. ':' .. ARGV[3]
  latest = math.max(latest, ends)
  keep_lock(lock, latest)
  save_share(lock, shares, ends_key, share, latest)
  if queued then
    leave_line(line, fair, fair_readers, waiters, hold)
  end
  return { 'granted', share.fence, others + 1, tonumber(share.permit) or -1 }
end
if reenter then
  return proven(lock, { 'not-held' })
end

local room
if kind == 'none' then
  local last, whose = last_end(ends_key)
  local other = last > now and (share_from(redis.call('HGET', shares, whose))
      or { kind = 'permits' })
  room = not other and most ~= 0 or other and not most and other.kind == 'shared'
elseif most then
  room = mode == 'permits' and #values < most
else
  room = mode == 'read'
end
local left = 0
if room then
  local refused = judge(read_record(starts), { guard = '', window = '' }, now, hold)
  if refused then
    return proven(lock, refused)
  end
  left = held_up(lock, counter, queue, waiters, line, fair, fair_readers, as, hold, now, us,
      ARGV[10], ARGV[13]) or 0
end
if not room or left > 0 then
  local record, flat = read_record(KEYS[3])
  if is_newer(record) and mode == 'write' and (not record.owner or has_field(lock, record.owner
      .. ':1:write')) then
    return { 'layout', record.v }
  end
  if left == 0 and kind == 'none' then
    left = math.max(last_end(ends_key) - now, 0)
  elseif left == 0 and most and mode == 'permits' then
    -- The first permit that ends is enough.
    local first = redis.call('ZRANGE', ends_key, 0, 0, 'WITHSCORES')
    left = first[2] and math.max(tonumber(first[2]) - now, 1) or 0
  end
  local fields = kind == 'hash' and redis.call('HRANDFIELD', lock, 16, 'WITHVALUES') or {}
  local place = join and join_line(line, fair, fair_readers, waiters, hold, ARGV[8], now, us,
      ARGV[11] == '1' and as or '') or 0
  place = place_of(place, line, queue, hold)
  return proven(lock, { 'busy', now, redis.call('PTTL', lock), fields, flat, place,
      some_shares(shares, ends_key), left })
end

local fence = next_fence(counter, us)
if not fence then
  return redis.error_reply('FENCE the counter is beyond 2^53')
end
share = {
  v = MAJOR .. '.2', owner = owner, kind = most and 'permits' or 'shared', fence = fence,
      since = whole(now), renewed = whole(now),
  root = hold, detached = ARGV[7], ['hold:' .. hold] = whole(ends) .. ':' .. ARGV[3],
}
if ARGV[8] ~= '' then
  share.meta = ARGV[8]
end
local value = '1'
if most then
  local taken, number = {}, 0
  for _, other in ipairs(values or {}) do
    taken[other] = true
  end
  while taken[whole(number)] do
    number = number + 1
  end
  value = whole(number)
  share.permit, share.most = value, whole(most)
end
local latest = save_share(lock, shares, ends_key, share, ends)
local lasts = kind ~= 'hash' and latest or end_of(lock)
redis.call('HSET', lock, 'mode', most and 'permits' or 'read', field_of(share), value)
if lasts then
  redis.call('PEXPIREAT', lock, whole(math.max(latest, lasts)))
end
if queued then
  leave_line(line, fair, fair_readers, waiters, hold)
end
-- If no permit is left, wake only the first waiter: it may have asked for a larger number of
-- permits.
local is_full = most and values and #values + 1 >= most
wake_line(line, ARGV[10], not is_full and ARGV[12] or nil)
return { 'granted', fence, 1, tonumber(share.permit) or -1 }
