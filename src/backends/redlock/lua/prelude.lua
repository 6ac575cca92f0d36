-- Common beginning of each of these scripts, after `../redis/lua/common.lua`. Not a script of its
-- own.
--
-- On each node a lock is the string "<owner>:<attempt>", as in every Redlock library. The record
-- next to it is read by no other library:
--   v         layout version, major.minor; an unknown major is refused
--   owner, attempt  the record's owner; it counts only while the string is "<owner>:<attempt>"
--   count     the counter's value for this attempt (phase 1)
--   fence     the fencing token; missing until this attempt was committed here (phase 2)
--   since     when the node was taken; times are ms of this node's clock
--   renewed   when the hold was last extended
--   root      the hold that the lock was taken with
--   detached  1 if no process stands behind the hold
--   meta      the holder, as JSON; may be missing
--   mark      the break of the hold, as JSON; seen: 1 if the holder knows of the break
--   hold:ID   one for each hold: "<end ms>:<ttl ms>"
-- The record outlives the string, so that the history gets a hold that was never released.
--
-- On a node held by readers, the string is "shared:<attempt>" with the first reader's attempt, and
-- it ends with the last reader. dlock's data on readers is in two keys. The hash `shares` has per
-- owner a record as above in JSON, under "lock" that string, and under "fences" the highest fences
-- committed meanwhile. The sorted set `ends` has per owner the end of its last hold. The shares
-- count only while the string equals "lock". So shares end once the node had another owner, and
-- don't exist if the node lost `shares`. Each share ends at its own end, whatever the string's TTL
-- is.
--
-- A proxy may deliver an attempt late, after its connection to dlock broke and the attempt was
-- undone over another one. The undo then leaves the string `late:<attempt>`.
--
-- A waiter for the whole lock is in the queue, and so keeps out later readers, until it has been
-- silent for as many ms as its field "silence:<hold>" in the hash of waiters says. A waiting reader
-- is in the second queue, `line`.

-- Returns the type of the value at `lock` and, for a string, its first 100 bytes: dlock's are never
-- longer.
local function read_lock(lock)
  local kind = redis.call('TYPE', lock).ok
  return kind, kind == 'string' and redis.call('GETRANGE', lock, 0, 99) or ''
end

-- Whether `record` describes the holder whose string is `value`, and that holder is `owner`.
local function is_ours(record, value, owner)
  return record.owner == owner and record.attempt ~= nil and value == owner .. ':' .. record.attempt
end

-- Whether readers hold the node, whose string is `value`.
local function has_readers(value, shares)
  return string.sub(value, 1, 7) == 'shared:' and redis.call('HGET', shares, 'lock') == value
end

-- Returns the owner's share as a table, or nil.
local function share_of(value, shares, owner)
  local text = has_readers(value, shares) and redis.call('HGET', shares, owner)
  return text and cjson.decode(text) or nil
end

-- Returns the share with this fence as a table, or nil. Also finds a share that no longer counts.
local function share_with(shares, fence)
  local texts = redis.pcall('HVALS', shares)
  for _, text in ipairs(texts.err and {} or texts) do
    local fine, share = pcall(cjson.decode, text)
    if fine and type(share) == 'table' and share.fence == fence and not is_newer(share) then
      return share
    end
  end
end

-- Returns the end of the last of a share's holds; 0 if all have ended.
local function share_ends(share, now)
  return (select(2, other_holds(share, '', now)))
end

-- Saves a share that ends at `ends`.
local function save_share(shares, ends_key, share, ends)
  redis.call('ZADD', ends_key, whole(ends), share.owner)
  redis.call('HSET', shares, share.owner, cjson.encode(share))
end

-- Removes and returns up to 32 expired shares; with `all`, deletes all shares and returns up to 32.
local function take_out(shares, ends_key, now, all)
  local owners, gone = redis.pcall('ZRANGEBYSCORE', ends_key, '-inf', all and '+inf' or whole(now),
      'LIMIT', 0, 32), {}
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

-- Sets the end of the lock on this node to that of its last share, or deletes a lock without
-- shares. A reader that released or crashed must not keep the node.
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

-- Removes a share from the node.
local function drop_share(lock, shares, ends_key, share, runs, bad, now)
  redis.call('HDEL', shares, share.owner)
  redis.call('ZREM', ends_key, share.owner)
  settle(lock, shares, ends_key, runs, bad, now)
end

-- Returns "fences" with this fence added; nil if another reader has the fence, or may have had it.
--
-- Readers' spans from count to commit overlap. So the highest counts of two readers, from different
-- nodes, can be the same number. Any two majorities share a node, and that node refuses the second.
-- It keeps 100 fences and refuses any fence below all of them.
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
