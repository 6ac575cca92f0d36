-- What each of these scripts begins with. Not a script of its own.
--
-- On each node a lock is the string "<owner>:<attempt>", as every Redlock library keeps one, and beside it a record that
-- those libraries never see:
--   v         layout version, major.minor; an unknown major is refused
--   owner, attempt  whose record it is; it counts only while the string is "<owner>:<attempt>"
--   count     what the counter gave this attempt (phase 1)
--   fence     the fencing token; missing until this attempt was committed here (phase 2)
--   since     when the node was taken; times are ms of this node's clock
--   renewed   when it was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind it
--   meta      who, as JSON; may be missing
--   mark      who is breaking the hold, as JSON; broken: the same as the end of a line of the history; seen: 1 if its holder knows
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- It outlives the string, so that a hold which was never given back is not forgotten.

local MAJOR = 1

-- The node's time, in ms and in us.
local function clock()
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  return math.floor(us / 1000), us
end

-- A number in all its digits: Lua would write 1.7e+15.
local function whole(number)
  return string.format('%.0f', number)
end

-- The type of what is stored at `lock`, and its value if that is a string: not more of it than ours ever has.
local function read_lock(lock)
  local kind = redis.call('TYPE', lock).ok
  return kind, kind == 'string' and redis.call('GETRANGE', lock, 0, 99) or ''
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

-- Whether `record` is about the holder whose string this is, and that is `owner`.
local function is_ours(record, value, owner)
  return record.owner == owner and record.attempt ~= nil and value == owner .. ':' .. record.attempt
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
