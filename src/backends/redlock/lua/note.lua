-- Records a skip, a lost hold or a warning on one node, outside any grant or release. The holders
-- stay unchanged.
--
-- KEYS  1 lock   2 record   3 runs   4 runs that ended badly   5 skips   6 starts   7 shares
--       8 their ends
-- ARGV  1 "skipped"  2 host  3 reason  4 how many hosts are counted at most
--       1 "lost"     2 fence  3 a history entry
--       1 "warn"     2 fence  3 level
-- Reply 1; for "warn" 0 if the warning was claimed before
--
-- Worst case: the record of the lost hold is still there, and the next grant would archive it again
-- with fewer details. So this script deletes the record.

if ARGV[1] == 'warn' then
  return warn(KEYS[6], ARGV[2], ARGV[3])
end
if ARGV[1] == 'lost' then
  local _, value = read_lock(KEYS[1])
  local record = read_record(KEYS[2])
  if record.fence == ARGV[2] and record.owner and not is_ours(record, value, record.owner) then
    redis.call('DEL', KEYS[2])
  end
  local share, now = share_with(KEYS[7], ARGV[2]), (clock())
  if share and (share_ends(share, now) <= now or not has_readers(value, KEYS[7])) then
    redis.call('HDEL', KEYS[7], share.owner)
    redis.call('ZREM', KEYS[8], share.owner)
  end
  remember(KEYS[3], KEYS[4], ARGV[3], true)
  return 1
end
skipped(KEYS[5], ARGV[2], ARGV[3], ARGV[4])
return 1
