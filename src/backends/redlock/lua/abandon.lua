-- Leaves the queue or the line on one node, and lets in by that whom it kept out. Nobody is woken: who waits looks by itself.
--
-- KEYS  1 queue  2 waiters  3 line
-- ARGV  1 hold
-- Reply 1

leave_queue(KEYS[1], KEYS[2], ARGV[1])
leave_queue(KEYS[3], KEYS[2], ARGV[1])
return 1
