-- What the scripts of Redis and those of the nodes of Redlock have in common: time, records, the queue, the history.

local MAJOR = 1

-- The server's time, in ms and in us.
local function clock()
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  return math.floor(us / 1000), us
end

-- A number in all its digits: Lua would write 1.7e+15.
local function whole(number)
  return string.format('%.0f', number)
end

-- When a key ends, never before it does; nil if it has no end. One that does not exist has ended.
local function end_of(key)
  local left = redis.pcall('PTTL', key)
  if type(left) ~= 'number' or left == -1 then
    return nil
  end
  -- Before Redis 7.2 the clock goes on while a script runs: it is read after what is left.
  return left < 0 and 0 or clock() + left
end

-- The record at `key` as a table, and as the flat list that Redis returns.
local function read_record(key)
  local flat, record = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    record[flat[i]] = flat[i + 1]
  end
  return record, flat
end

-- Whether a version of dlock wrote `record` that this one can't read.
local function is_newer(record)
  return record.v ~= nil and (tonumber(string.match(record.v, '^%d+')) or MAJOR + 1) > MAJOR
end

-- The end and the TTL of a hold, or nil if it has ended or never was.
local function live_hold(record, id, now)
  local ends, ttl = string.match(record['hold:' .. id] or '', '^(%d+):(%d+)$')
  if ends and tonumber(ends) > now then
    return tonumber(ends), tonumber(ttl)
  end
end

-- How many holds other than `id` are live, when the last of them ends, and the fields of those that have ended.
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

-- The place in the queue, from 1. The queue only informs, so that no failure here may hide that the lock is busy.
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
    -- One that died without leaving is dropped when it has come to the front: constant work per call.
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

-- Leaves it. Never fails: what came before must stand.
local function leave_queue(queue, waiters, hold)
  redis.pcall('ZREM', queue, hold)
  redis.pcall('HDEL', waiters, hold, 'called:' .. hold)
end

-- How many runs, and for how many ms after the last one.
local REMEMBERED, KEEP = 100, 8640000000

-- Remembers a hold that is over, the latest first; those that ended badly once more. Never fails: what came before must stand.
local function remember(runs, bad, line, is_bad)
  for _, list in ipairs(is_bad and { runs, bad } or { runs }) do
    redis.pcall('LPUSH', list, line)
    redis.pcall('LTRIM', list, 0, REMEMBERED - 1)
    redis.pcall('PEXPIRE', list, KEEP)
  end
end

-- The hold of `record` as a line of the history; `how` is how it ended, the JSON from `"x":` on.
local function past(record, ended, how)
  local who = record.meta and ',"m":' .. record.meta or ''
  return '{"f":' .. record.fence .. ',"s":' .. record.since .. ',"e":' .. whole(ended) .. ',' .. how .. who .. '}'
end

-- Remembers the hold of a record whose lock is gone, if there is one: it was never given back.
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

-- What is kept of the starts of a lock's runs, in a hash of its own, for `terms` of later ones. Of the last run that had a skew guard or
-- at-least, p and: s when (ms), f fence, p place, g guard in ms, l at-least in ms, m the holder as JSON, h the hold that wrote it. Of the last that had
-- once, o and: s, f, m, h, x what became of it (started, ok, failed, undone), n the number of the attempt, w its window in ms. wf, wl: the hold that was last warned about, and up to which level.

-- Six arguments from the nth on; each may be "". `crashed` is "anyway" for a run that no earlier one refuses.
local function read_terms(n)
  return { place = ARGV[n], guard = ARGV[n + 1], least = ARGV[n + 2], window = ARGV[n + 3], failed = ARGV[n + 4], crashed = ARGV[n + 5] }
end

-- What is left of `length` ms from `since` on; nil if nothing is, and if the clock was set back by more than that.
local function left_of(since, length, now)
  length = tonumber(length) or 0
  if math.abs(now - since) < length and now < since + length then
    return since + length - now
  end
end

-- Whether an attempt of `hold` wrote the last start that had once, whose command was never started.
local function is_own(starts, hold)
  return starts.oh == hold and starts.ox == 'started'
end

-- Why a free lock is refused to `hold`: {"refused", rule, length or state, fence, age in ms, ms left, runner}; nil if it is granted. A
-- hold is never refused by a start of its own whose end was not told: an earlier attempt whose answer was lost wrote that, and its command was
-- never started.
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

-- Takes down a start of `hold`, if `terms` say so.
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
    -- Longer than any setting.
    redis.call('PEXPIRE', key, whole(math.max(redis.call('PTTL', key), KEEP, 2 * length)))
  end
end

-- The part of the record of starts that `became` changes, or nil. Read before anything is changed: it fails while a cluster has moved the record
-- elsewhere, and what became of a start would be lost.
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

-- Takes down what became of the start of the hold with this fence. Never fails: what came before must stand.
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
      -- What was tried before had failed, or it could not have been tried again.
      tries = math.max(tries - 1, 0)
      state = tries > 0 and 'failed' or 'undone'
    end
    redis.pcall('HSET', key, 'ox', state, 'on', whole(tries))
  end
end

-- Claims the warning about the hold with this fence at this level: false if this level, or a higher one, was claimed before.
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

-- Counts a host that did without; a new one only if there are not too many. In the hash `skips` it has "<count>:<since ms>:<last ms>:<reason>".
local function skipped(skips, host, reason, most)
  local now, known = clock(), redis.call('HGET', skips, host)
  if known or redis.call('HLEN', skips) < tonumber(most) then
    local count, since = string.match(known or '', '^(%d+):(%d+):')
    redis.call('HSET', skips, host, whole((tonumber(count) or 0) + 1) .. ':' .. (since or whole(now)) .. ':' .. whole(now) .. ':' .. reason)
    redis.call('PEXPIRE', skips, KEEP)
  end
end
