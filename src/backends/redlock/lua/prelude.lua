-- What each of these scripts begins with, after `../redis/lua/common.lua`. Not a script of its own.
--
-- On each node a lock is the string "<owner>:<attempt>", as every Redlock library keeps one, and next to it a record that
-- those libraries never see:
--   v         layout version, major.minor; an unknown major is refused
--   owner, attempt  whose record it is; it counts only while the string is "<owner>:<attempt>"
--   count     what the counter gave this attempt (phase 1)
--   fence     the fencing token; missing until this attempt was committed here (phase 2)
--   since     when the node was taken; times are ms of this node's clock
--   renewed   when it was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind it
--   meta      the holder, as JSON; may be missing
--   mark      the break of the hold, as JSON; broken: the same as the end of a line of the history; seen: 1 if its holder knows
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- It outlives the string, so that a hold which was never given back is not forgotten.
--
-- A node that readers have is the string "shared:<attempt>", of the attempt of the first of them, which ends with the last of them. What dlock
-- knows of them lies in two keys: `shares`, a hash, has by owner a record as above in JSON, under "lock" that string, and under "fences" the
-- highest fences that were committed meanwhile; `ends`, a sorted set, has by owner when the last of its holds ends. The shares count only
-- while the string is the one under "lock": so they are over once the node had another owner, and have never been if it forgot them.
-- Each ends by its own time, whatever the string's is.
--
-- A waiter for the whole lock stands in the queue, and so keeps later readers out. A waiting reader stands in the line.

-- The type of what is stored at `lock`, and its value if that is a string: not more of it than ours ever has.
local function read_lock(lock)
  local kind = redis.call('TYPE', lock).ok
  return kind, kind == 'string' and redis.call('GETRANGE', lock, 0, 99) or ''
end

-- Whether `record` is about the holder whose string this is, and that is `owner`.
local function is_ours(record, value, owner)
  return record.owner == owner and record.attempt ~= nil and value == owner .. ':' .. record.attempt
end

-- Whether readers have the node whose string this is.
local function has_readers(value, shares)
  return string.sub(value, 1, 7) == 'shared:' and redis.call('HGET', shares, 'lock') == value
end

-- The owner's share as a table, or nil.
local function share_of(value, shares, owner)
  local text = has_readers(value, shares) and redis.call('HGET', shares, owner)
  return text and cjson.decode(text) or nil
end

-- The share with this fence as a table, or nil, whether it counts or not.
local function share_with(shares, fence)
  local texts = redis.pcall('HVALS', shares)
  for _, text in ipairs(texts.err and {} or texts) do
    local fine, share = pcall(cjson.decode, text)
    if fine and type(share) == 'table' and share.fence == fence and not is_newer(share) then
      return share
    end
  end
end

-- When the last of a share's holds ends; 0 if all have.
local function share_ends(share, now)
  return (select(2, other_holds(share, '', now)))
end

-- Writes a share down, which is there until `ends`.
local function save_share(shares, ends_key, share, ends)
  redis.call('ZADD', ends_key, whole(ends), share.owner)
  redis.call('HSET', shares, share.owner, cjson.encode(share))
end

-- Takes out the shares that were never given back, a few at a time, and returns them; with `all`, whatever is there.
local function take_out(shares, ends_key, now, all)
  local owners, gone = redis.pcall('ZRANGEBYSCORE', ends_key, '-inf', all and '+inf' or whole(now), 'LIMIT', 0, 32), {}
  for _, owner in ipairs(owners.err and {} or owners) do
    local text = redis.pcall('HGET', shares, owner)
    local fine, share = pcall(cjson.decode, type(text) == 'string' and text or '')
    gone[#gone + 1] = fine and type(share) == 'table' and share or nil
    if not all then
      redis.call('HDEL', shares, owner)
      redis.call('ZREM', ends_key, owner)
    end
  end
  if all then
    redis.call('DEL', shares, ends_key)
  end
  return gone
end

-- Lets a node that readers have end with the last of them, and frees it if there is none: one that was given back, or crashed, must not
-- keep it.
local function settle(lock, shares, ends_key, runs, bad, now)
  local last = tonumber(redis.call('ZRANGE', ends_key, -1, -1, 'WITHSCORES')[2]) or 0
  if last > now then
    redis.call('PEXPIREAT', lock, whole(last))
    redis.call('PEXPIREAT', shares, whole(last + KEEP))
    redis.call('PEXPIREAT', ends_key, whole(last + KEEP))
    return
  end
  redis.call('DEL', lock)
  for _, share in ipairs(take_out(shares, ends_key, now, true)) do
    remember_vanished(share, runs, bad, now)
  end
end

-- Takes a share out of the node.
local function drop_share(lock, shares, ends_key, share, runs, bad, now)
  redis.call('HDEL', shares, share.owner)
  redis.call('ZREM', ends_key, share.owner)
  settle(lock, shares, ends_key, runs, bad, now)
end

-- What is under "fences" with this one too; nil if another reader has it already, or may have had it.
--
-- Readers' spans from count to commit overlap, so that the highest counts of two of them, from different nodes, can be the same number. Any two
-- majorities meet on a node, and there the second one is refused. Some fences are enough: below those that are known, all are refused.
local function with_fence(shares, fence)
  local most, known = 100, {}
  for one in string.gmatch(redis.call('HGET', shares, 'fences') or '', '%d+') do
    if one == fence then
      return nil
    end
    known[#known + 1] = one
  end
  if #known >= most and tonumber(fence) < tonumber(known[1]) then
    return nil
  end
  known[#known + 1] = fence
  table.sort(known, function(a, b) return tonumber(a) < tonumber(b) end)
  return table.concat(known, ' ', math.max(#known - most + 1, 1))
end
