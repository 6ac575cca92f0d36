-- Common part of the scripts of Redis and of Redlock's nodes: time, records, the queue, the history.

local MAJOR = 1

-- Returns the server's time, in ms and in us.
local function clock()
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  return math.floor(us / 1000), us
end

-- Formats a number with all its digits: Lua would write 1.7e+15.
local function whole(number)
  return string.format('%.0f', number)
end

-- Returns when a key expires, never too early: nil if it has no TTL, 0 if it does not exist.
local function end_of(key)
  local left = redis.pcall('PTTL', key)
  if type(left) ~= 'number' or left == -1 then
    return nil
  end
  -- Before Redis 7.2 the clock advances while a script runs, so it is read after PTTL.
  return left < 0 and 0 or clock() + left
end

-- Returns the record at `key` as a table, and as the flat list from Redis.
local function read_record(key)
  local flat, record = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    record[flat[i]] = flat[i + 1]
  end
  return record, flat
end

-- Whether a newer dlock wrote `record` in a layout that this one can't read.
local function is_newer(record)
  return record.v ~= nil and (tonumber(string.match(record.v, '^%d+')) or MAJOR + 1) > MAJOR
end

-- Returns the end and the TTL of a hold; nil if it has ended or never existed.
local function live_hold(record, id, now)
  local ends, ttl = string.match(record['hold:' .. id] or '', '^(%d+):(%d+)$')
  if ends and tonumber(ends) > now then
    return tonumber(ends), tonumber(ttl)
  end
end

-- Returns the number of live holds other than `id`, the end of the last of them, and the fields of the ended ones.
local function other_holds(record, id, now)
  local count, latest, ended = 0, 0, {}
  for field in pairs(record) do
    local other = string.match(field, '^hold:(.+)$')
    if other and other ~= id then
      local ends = live_hold(record, other, now)
      if ends then
        count, latest = count + 1, math.max(latest, ends)
      else
        ended[#ended + 1] = field
      end
    end
  end
  return count, latest, ended
end

-- Returns the position in the queue, from 1; 0 if it is unknown. A failure here must not hide that the lock is busy.
local function join_queue(queue, waiters, hold, who, now, us)
  redis.pcall('ZADD', queue, 'NX', whole(us), hold)
  redis.pcall('HSET', waiters, hold, whole(now) .. ':' .. who)
  redis.pcall('PEXPIRE', queue, 20000)
  redis.pcall('PEXPIRE', waiters, 20000)
  local place = redis.pcall('ZRANK', queue, hold)
  if type(place) ~= 'number' then
    return 0
  end
  if place > 0 then
    -- A waiter that died is dropped once it is first: constant work per call.
    local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
    local seen = first and redis.pcall('HGET', waiters, first)
    local seen_at = type(seen) == 'string' and tonumber(string.match(seen, '^%d+')) or 0
    if first and seen_at < now - 15000 then
      redis.pcall('ZREM', queue, first)
      redis.pcall('HDEL', waiters, first)
      place = place - 1
    end
  end
  return place + 1
end

-- Leaves the queue. Never fails: the writes before it must stand.
local function leave_queue(queue, waiters, hold)
  redis.pcall('ZREM', queue, hold)
  redis.pcall('HDEL', waiters, hold, 'called:' .. hold)
end

-- The number of history entries kept, and the ms for which they are kept after the last one.
local REMEMBERED, KEEP = 100, 8640000000

-- Adds a finished hold to the history, latest first; a failed one also to `bad`. Never fails: the writes before it must stand.
local function remember(runs, bad, line, is_bad)
  for _, list in ipairs(is_bad and { runs, bad } or { runs }) do
    redis.pcall('LPUSH', list, line)
    redis.pcall('LTRIM', list, 0, REMEMBERED - 1)
    redis.pcall('PEXPIRE', list, KEEP)
  end
end

-- Returns the hold of `record` as a history entry; `how` is its outcome, the JSON from `"x":` on.
local function past(record, ended, how)
  local who = record.meta and ',"m":' .. record.meta or ''
  return '{"f":' .. record.fence .. ',"s":' .. record.since .. ',"e":' .. whole(ended) .. ',' .. how .. who .. '}'
end

-- Adds the hold of a record whose lock is gone to the history, if there is one: it was never released.
local function remember_vanished(record, runs, bad, now)
  if not record.fence or not record.since or is_newer(record) then
    return
  end
  local last = 0
  for field, value in pairs(record) do
    if string.sub(field, 1, 5) == 'hold:' then
      last = math.max(last, tonumber(string.match(value, '^%d+')) or 0)
    end
  end
  local how = record.broken or '"x":"expired"'
  if last > now and not record.broken then
    how = how .. ',"w":"it was deleted before its time"'
  end
  remember(runs, bad, past(record, math.min(last, now), how), true)
end

-- The lock's run record, a hash of its own, for later runs. Prefix p, the last run with a skew guard or at-least: s start (ms), f fence,
-- p host, g guard (ms), l at-least (ms), m the holder as JSON, h the hold that wrote it. Prefix o, the last run with once: s, f, m, h,
-- x state (started, ok, failed, undone), n attempt number, w window (ms). wf, wl: the fence and level of the last warning.

-- Reads a run policy, six arguments from the nth on; each may be "". `crashed` is "anyway" for a run that no earlier run denies.
local function read_terms(n)
  return { place = ARGV[n], guard = ARGV[n + 1], least = ARGV[n + 2], window = ARGV[n + 3], failed = ARGV[n + 4], crashed = ARGV[n + 5] }
end

-- Returns the rest of `length` ms from `since` on; nil if none is left, or if the clock was set back by more than `length`.
local function left_of(since, length, now)
  length = tonumber(length) or 0
  if math.abs(now - since) < length and now < since + length then
    return since + length - now
  end
end

-- Whether `hold` itself wrote the last start with once, and its command was never started.
local function is_own(starts, hold)
  return starts.oh == hold and starts.ox == 'started'
end

-- Returns why a free lock is denied to `hold`: {"refused", rule, length or state, fence, age in ms, ms left, runner}; nil if it is
-- granted. A hold's own start without an outcome never denies it: an earlier attempt whose reply was lost wrote that start, and its
-- command was never started.
local function judge(starts, terms, now, hold)
  if terms.crashed == 'anyway' then
    return nil
  end
  local since = tonumber(starts.ps)
  if since and starts.ph ~= hold then
    local left = left_of(since, starts.pl, now)
    if left then
      return { 'refused', 'at-least', starts.pl, starts.pf, now - since, left, starts.pm or '' }
    end
    left = terms.guard ~= '' and terms.place ~= starts.pp and left_of(since, starts.pg, now)
    if left then
      return { 'refused', 'skew-guard', starts.pg, starts.pf, now - since, left, starts.pm or '' }
    end
  end
  since = tonumber(starts.os)
  if since and not is_own(starts, hold) and terms.window ~= '' then
    local age, state = now - since, starts.ox
    local again = state == 'undone' or age >= tonumber(terms.window)
      or (state == 'failed' and (tonumber(starts.on) or 1) <= tonumber(terms.failed))
      or (state ~= 'failed' and state ~= 'ok' and terms.crashed == '1')
    if not again then
      return { 'refused', 'once', state, starts.of, age, since + tonumber(terms.window) - now, starts.om or '' }
    end
  end
end

-- Records a start of `hold`, if its run policy `terms` has a rule.
local function begin(key, starts, terms, fence, now, who, hold)
  local fields, length = {}, 0
  local function add(...)
    for _, value in ipairs({ ... }) do
      fields[#fields + 1] = value
    end
  end
  if terms.guard ~= '' or terms.least ~= '' then
    add('ps', whole(now), 'pf', fence, 'pp', terms.place, 'pg', terms.guard, 'pl', terms.least, 'pm', who, 'ph', hold)
    length = math.max(tonumber(terms.guard) or 0, tonumber(terms.least) or 0)
  end
  if terms.window ~= '' then
    local since, tries = tonumber(starts.os), 1
    if since and now - since < tonumber(terms.window) and terms.crashed ~= 'anyway' then
      tries = (tonumber(starts.on) or 0) + (is_own(starts, hold) and 0 or 1)
    end
    add('os', whole(now), 'of', fence, 'ox', 'started', 'on', whole(tries), 'ow', terms.window, 'om', who, 'oh', hold)
    length = math.max(length, tonumber(terms.window))
  end
  if #fields > 0 then
    redis.call('HSET', key, unpack(fields))
    -- The record is kept longer than any rule can need it.
    redis.call('PEXPIRE', key, whole(math.max(redis.call('PTTL', key), KEEP, 2 * length)))
  end
end

-- Reads the part of the run record that `became` changes, or nil. Call it before any write: it fails while a cluster has moved the run
-- record elsewhere, and the outcome would be lost.
local function known_start(key, state)
  if state == '' then
    return nil
  end
  local known = redis.pcall('HMGET', key, 'pf', 'of', 'ox', 'on')
  if known.err and state ~= 'undone' and string.find(known.err, 'non local key', 1, true) then
    error(known.err)
  end
  return not known.err and known or nil
end

-- Records the outcome `state` of the start with this fence. Never fails: the writes before it must stand.
local function became(key, fence, state, known)
  if not known or not fence then
    return
  end
  if state == 'undone' and known[1] == fence then
    redis.pcall('HDEL', key, 'ps', 'pf', 'pp', 'pg', 'pl', 'pm', 'ph')
  end
  if known[2] == fence and known[3] == 'started' then
    local tries = tonumber(known[4]) or 1
    if state == 'undone' then
      -- The attempt before this one failed; otherwise this one would have been denied.
      tries = math.max(tries - 1, 0)
      state = tries > 0 and 'failed' or 'undone'
    end
    redis.pcall('HSET', key, 'ox', state, 'on', whole(tries))
  end
end

-- Claims the warning about the hold with this fence at this level. Returns 0 if this level or a higher one was claimed before, else 1.
local function warn(key, fence, level)
  local known = redis.call('HMGET', key, 'wf', 'wl')
  local last, most = tonumber(known[1]) or 0, tonumber(known[2]) or 0
  if tonumber(fence) < last or (tonumber(fence) == last and tonumber(level) <= most) then
    return 0
  end
  redis.call('HSET', key, 'wf', fence, 'wl', level)
  redis.call('PEXPIRE', key, whole(math.max(redis.call('PTTL', key), KEEP)))
  return 1
end

-- Counts a skip of `host`; a new host only below `most` hosts. The hash `skips` maps it to "<count>:<since ms>:<last ms>:<reason>".
local function skipped(skips, host, reason, most)
  local now, known = clock(), redis.call('HGET', skips, host)
  if known or redis.call('HLEN', skips) < tonumber(most) then
    local count, since = string.match(known or '', '^(%d+):(%d+):')
    redis.call('HSET', skips, host, whole((tonumber(count) or 0) + 1) .. ':' .. (since or whole(now)) .. ':' .. whole(now) .. ':' .. reason)
    redis.call('PEXPIRE', skips, KEEP)
  end
end
