-- Leaves the queue or `line` on one node, which unblocks readers that this waiter kept out. No
-- waiter is woken: waiters poll.
--
-- KEYS  1 queue  2 waiters  3 line
-- ARGV  1 hold
-- Reply 1

leave_queue(KEYS[1], KEYS[2], ARGV[1])
leave_queue(KEYS[3], KEYS[2], ARGV[1])
return 1
