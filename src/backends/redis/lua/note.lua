-- Records a skip, a lost hold or a warning, outside any grant or release. The holders stay
-- unchanged.
--
-- KEYS  1 lock   2 record   3 runs   4 runs that ended badly   5 skips   6 starts   7 shares
--       8 their ends
-- ARGV  1 "skipped"  2 host  3 reason  4 how many hosts are counted at most
--       1 "lost"     2 fence  3 a history entry
--       1 "warn"     2 fence  3 level
-- Reply 1; for "warn" 0 if there is no such hold, or the warning was claimed before
--
-- Worst case: the record of the lost hold is still there, and the next grant would archive it again
-- with fewer details. So this script deletes the record.

if ARGV[1] == 'warn' then
  return hold_with(ARGV[2], KEYS[1], read_record(KEYS[2]), KEYS[7])
      and warn(KEYS[6], ARGV[2], ARGV[3]) or 0
end
if ARGV[1] == 'lost' then
  local record = read_record(KEYS[2])
  if record.fence == ARGV[2] and record.owner and not has_field(KEYS[1], record.owner
      .. ':1:write') then
    redis.call('DEL', KEYS[2])
  end
  local texts = redis.pcall('HVALS', KEYS[7])
  for _, text in ipairs(texts.err and {} or texts) do
    local share = share_from(text)
    local now = clock()
    if share and share.fence == ARGV[2] and not is_newer(share)
        and (select(2, other_holds(share, '', now)) <= now
        or not has_field(KEYS[1], field_of(share))) then
      redis.pcall('HDEL', KEYS[1], field_of(share))
      redis.call('HDEL', KEYS[7], share.owner)
      redis.call('ZREM', KEYS[8], share.owner)
    end
  end
  remember(KEYS[3], KEYS[4], ARGV[3], true)
  return 1
end
skipped(KEYS[5], ARGV[2], ARGV[3], ARGV[4])
return 1
