-- What each of these scripts begins with, after `../redis/lua/common.lua`. Not a script of its own.
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

-- The type of what is stored at `lock`, and its value if that is a string: not more of it than ours ever has.
local function read_lock(lock)
  local kind = redis.call('TYPE', lock).ok
  return kind, kind == 'string' and redis.call('GETRANGE', lock, 0, 99) or ''
end

-- Whether `record` is about the holder whose string this is, and that is `owner`.
local function is_ours(record, value, owner)
  return record.owner == owner and record.attempt ~= nil and value == owner .. ':' .. record.attempt
end
