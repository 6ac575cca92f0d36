-- Common part of the scripts of Redis and of Redlock's nodes: time, records, the queue, the
-- history.

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

-- For how many ms late requests are refused. Linux gives up a connection whose data stays
-- unacknowledged after 16 to 18 minutes.
local LATE = 1200000

-- Returns `reply`, which rests on nothing but reads. HDEL changes nothing, but a replica refuses
-- it: a replica, whose data its master may be replacing, proves nothing. The key is a hash, or
-- missing.
local function proven(key, reply)
  local written_to = redis.pcall('HDEL', key, '')
  if type(written_to) == 'table' and string.find(written_to.err, 'READONLY', 1, true) then
    return written_to
  end
  return reply
end

-- Returns the end and the TTL of a hold; nil if it has ended or never existed.
local function live_hold(record, id, now)
  local ends, ttl = string.match(record['hold:' .. id] or '', '^(%d+):(%d+)$')
  if ends and tonumber(ends) > now then
    return tonumber(ends), tonumber(ttl)
  end
end

-- Returns the number of live holds other than `id`, the end of the last of them, and the fields of
-- the ended ones.
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

-- Returns the position in the queue, from 1; 0 if it is unknown. A failure here must not hide that
-- the lock is busy.
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
  redis.pcall('HDEL', waiters, hold, 'called:' .. hold, 'silence:' .. hold)
end

-- The number of history entries kept, and the ms for which they are kept after the last one.
local REMEMBERED, KEEP = 100, 8640000000

-- Adds a finished hold to the history, latest first; a failed one also to `bad`. Never fails: the
-- writes before it must stand.
local function remember(runs, bad, line, is_bad)
  for _, list in ipairs(is_bad and { runs, bad } or { runs }) do
    redis.pcall('LPUSH', list, line)
    redis.pcall('LTRIM', list, 0, REMEMBERED - 1)
    redis.pcall('PEXPIRE', list, KEEP)
  end
end

-- Returns the end of the history entry of a hold with this mark. The mark's JSON is an outcome's.
local function broken(mark)
  return '"x":"broken","o":' .. mark
end

-- Returns the hold of `record` as a history entry; `how` is how it ended, the JSON from `"x":` on.
local function past(record, ended, how)
  local who = record.meta and ',"m":' .. record.meta or ''
  return '{"f":' .. record.fence .. ',"s":' .. record.since .. ',"e":' .. whole(ended) .. ',' .. how
      .. who .. '}'
end

-- Adds the hold of a record whose lock is gone to the history, if there is one: it was never
-- released.
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
  local how = record.mark and broken(record.mark) or '"x":"expired"'
  if last > now and not record.mark then
    how = how .. ',"o":{"why":"it was deleted before its time"}'
  end
  remember(runs, bad, past(record, math.min(last, now), how), true)
end

-- The lock's run record, a hash of its own, for later runs. Prefix p, the last run with a skew
-- guard or at-least: s start (ms), f fence, p host, g guard (ms), l at-least (ms), m the holder as
-- JSON, h the hold that wrote it. Prefix o, the last run with once: s, f, m, h, x state (started,
-- ok, failed, unknown), n attempt number, w window (ms). Until the outcome of the last run is
-- recorded: prefixes b and q have the records of p and o that it replaced, and k the last success
-- before o. wf, wl: the fence and level of the last warning.
local COOLDOWN, START = 'sfpglmh', 'sfxnwmh'

-- Reads a run policy, six arguments from the nth on; each may be "". `crashed` is "anyway" for a
-- run that no earlier run denies.
local function read_terms(n)
  return { place = ARGV[n], guard = ARGV[n + 1], least = ARGV[n + 2], window = ARGV[n + 3],
      failed = ARGV[n + 4], crashed = ARGV[n + 5] }
end

-- Returns the rest of `length` ms from `since` on; nil if none is left, or if the clock was set
-- back by more than `length`.
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

-- Returns why a free lock is denied to `hold`: {"refused", rule, length or state, fence, age in ms,
-- ms left, runner}; nil if it is granted. A hold's own start without an outcome never denies it: an
-- earlier attempt whose reply was lost wrote that start, and its command was never started.
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
  if terms.window == '' or is_own(starts, hold) or not starts.os then
    return nil
  end
  for prefix in string.gmatch('ok', '.') do
    since = tonumber(starts[prefix .. 's'])
    if since then
      local age, state = now - since, starts[prefix .. 'x']
      local again = age >= tonumber(terms.window)
        or (state == 'failed' and (tonumber(starts.on) or 1) <= tonumber(terms.failed))
        or (state ~= 'failed' and state ~= 'ok' and terms.crashed == '1')
      if not again then
        local left = since + tonumber(terms.window) - now
        return { 'refused', 'once', state, starts[prefix .. 'f'], age, left, starts[prefix .. 'm']
            or '' }
      end
    end
  end
end

-- Returns the record at `prefix` of the run record, unless no rule of its own run can need it any
-- more.
local function still_counts(starts, prefix, length, now)
  local since = tonumber(starts[prefix .. 's'])
  return since ~= nil and now < since + (tonumber(length) or 0)
end

-- The changes of a run record: fields to set, name and value in turn, and fields to remove.
local function changes_of(starts)
  local changes = { set = {}, gone = {} }

  function changes.put(...)
    for _, value in ipairs({ ... }) do
      changes.set[#changes.set + 1] = value
    end
  end

  -- Makes the record at prefix `to` a copy of the one at `from`, or removes it if `from` is nil.
  function changes.copy(from, to, names)
    for name in string.gmatch(names, '.') do
      local value = from and starts[from .. name]
      if value then
        changes.put(to .. name, value)
      elseif starts[to .. name] then
        changes.gone[#changes.gone + 1] = to .. name
      end
    end
  end

  return changes
end

-- Records a start of `hold`, if its run policy `terms` has a rule. What it replaces is kept until
-- its outcome is recorded.
local function begin(key, starts, terms, fence, now, who, hold)
  local changes, length = changes_of(starts), 0
  local forgets = terms.crashed == 'anyway' and terms.window == '0'
  if terms.guard ~= '' or terms.least ~= '' then
    if starts.ps and starts.ph ~= hold then
      local most = math.max(tonumber(starts.pg) or 0, tonumber(starts.pl) or 0)
      changes.copy(not forgets and still_counts(starts, 'p', most, now) and 'p' or nil, 'b',
          COOLDOWN)
    end
    changes.put('ps', whole(now), 'pf', fence, 'pp', terms.place, 'pg', terms.guard, 'pl',
        terms.least, 'pm', who, 'ph', hold)
    length = math.max(tonumber(terms.guard) or 0, tonumber(terms.least) or 0)
  end
  if terms.window ~= '' then
    local since, tries, own = tonumber(starts.os), 1, is_own(starts, hold)
    if since and now - since < tonumber(terms.window) and terms.crashed ~= 'anyway' then
      tries = (tonumber(starts.on) or 0) + (own and 0 or 1)
    end
    if since and not own then
      local counts = not forgets and still_counts(starts, 'o', starts.ow, now)
      if starts.ox == 'ok' then
        changes.copy(counts and 'o' or nil, 'k', START)
      elseif forgets or not still_counts(starts, 'k', starts.kw, now) then
        changes.copy(nil, 'k', START)
      end
      changes.copy(counts and 'o' or nil, 'q', START)
    end
    changes.put('os', whole(now), 'of', fence, 'ox', 'started', 'on', whole(tries), 'ow',
        terms.window, 'om', who, 'oh', hold)
    length = math.max(length, tonumber(terms.window))
  end
  if #changes.set > 0 then
    redis.call('HSET', key, unpack(changes.set))
    -- The record is kept longer than any rule can need it.
    redis.call('PEXPIRE', key, whole(math.max(redis.call('PTTL', key), KEEP, 2 * length)))
  end
  if #changes.gone > 0 then
    redis.call('HDEL', key, unpack(changes.gone))
  end
end

-- Reads the run record for `became`, or nil if there is no outcome to record. Call it before any
-- write: it fails while a cluster has moved the run record elsewhere, and the outcome would be
-- lost.
local function known_start(key, state)
  if state == '' then
    return nil
  end
  local flat, known = redis.pcall('HGETALL', key), {}
  if flat.err then
    if state ~= 'undone' and string.find(flat.err, 'non local key', 1, true) then
      error(flat.err)
    end
    return nil
  end
  for i = 1, #flat, 2 do
    known[flat[i]] = flat[i + 1]
  end
  return known
end

-- Records the outcome `state` of the start with this fence: for 'undone', the record is again as it
-- was before the start. A start that did not succeed takes back no earlier success. Never fails:
-- the writes before it must stand.
local function became(key, fence, state, known)
  if not known or not fence then
    return
  end
  local changes = changes_of(known)
  if known.pf == fence then
    if state == 'undone' then
      changes.copy('b', 'p', COOLDOWN)
    end
    changes.copy(nil, 'b', COOLDOWN)
  end
  if known.of == fence and known.ox == 'started' then
    local from = state == 'undone' and 'q' or state ~= 'ok' and known.ks and 'k'
    if from then
      changes.copy(from, 'o', START)
    else
      changes.put('ox', state)
    end
    if state ~= 'undone' or not known.qs or known.qx == 'ok' then
      changes.copy(nil, 'k', START)
    end
    changes.copy(nil, 'q', START)
  end
  if #changes.set > 0 then
    redis.pcall('HSET', key, unpack(changes.set))
  end
  if #changes.gone > 0 then
    redis.pcall('HDEL', key, unpack(changes.gone))
  end
end

-- Claims the warning about the hold with this fence at this level. Returns 0 if this level or a
-- higher one was claimed before, else 1.
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

-- Forgets the host whose last skip is longest ago.
local function forget_host(skips)
  local all, host, oldest = redis.call('HGETALL', skips), nil, math.huge
  for n = 1, #all, 2 do
    local last = tonumber(string.match(all[n + 1], '^%d+:%d+:(%d+):')) or 0
    if last < oldest then
      host, oldest = all[n], last
    end
  end
  redis.call('HDEL', skips, host)
end

-- Counts a skip of `host`, among the `most` hosts that skipped last. The hash `skips` maps it to
-- "<count>:<since ms>:<last ms>:<reason>".
local function skipped(skips, host, reason, most)
  local now, known = clock(), redis.call('HGET', skips, host)
  if not known and redis.call('HLEN', skips) >= tonumber(most) then
    forget_host(skips)
  end
  local count, since = string.match(known or '', '^(%d+):(%d+):')
  redis.call('HSET', skips, host, whole((tonumber(count) or 0) + 1) .. ':' .. (since or whole(now))
      .. ':' .. whole(now) .. ':' .. reason)
  redis.call('PEXPIRE', skips, KEEP)
end
