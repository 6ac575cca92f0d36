-- How scripts remember holds that are over. Stands after the prelude; not a script of its own.

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
