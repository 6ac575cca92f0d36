"""Redisson's lock protocol, as scripts written for this test. A client waits for a message or for the end of the lease."""

import time
import uuid

import redis
from driver import Lock

PLAIN = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
return redis.call('pttl', KEYS[1])
"""

PLAIN_END = """
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return false end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) <= 0 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], 0)
end
return 1
"""

WRITE = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  if redis.call('exists', KEYS[1]) == 1 then return redis.call('pttl', KEYS[1]) end
  redis.call('hset', KEYS[1], 'mode', 'write')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1])
  return false
end
return redis.call('pttl', KEYS[1])
"""

READ = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  if redis.call('exists', KEYS[1]) == 1 then return redis.call('pttl', KEYS[1]) end
  redis.call('hset', KEYS[1], 'mode', 'read')
elseif mode ~= 'read' then
  return redis.call('pttl', KEYS[1])
end
local nth = redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('set', KEYS[3] .. ':' .. nth, 1, 'PX', ARGV[1])
redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
return false
"""

SHARE_END = """
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return false end
local left = redis.call('hincrby', KEYS[1], ARGV[1], -1)
redis.call('del', KEYS[3] .. ':' .. (left + 1))
if left <= 0 then redis.call('hdel', KEYS[1], ARGV[1]) end
if redis.call('hlen', KEYS[1]) <= 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], 0)
end
return 1
"""

FAIR = """
local now = redis.call('time')
now = now[1] * 1000 + math.floor(now[2] / 1000)
while true do
  local first = redis.call('lindex', KEYS[4], 0)
  if not first or tonumber(redis.call('zscore', KEYS[5], first)) > now then break end
  redis.call('zrem', KEYS[5], first)
  redis.call('lpop', KEYS[4])
end
local first = redis.call('lindex', KEYS[4], 0)
if redis.call('exists', KEYS[1]) == 0 and (not first or first == ARGV[2]) then
  redis.call('lpop', KEYS[4])
  redis.call('zrem', KEYS[5], ARGV[2])
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
local left = redis.call('pttl', KEYS[1])
if ARGV[3] == '1' and not redis.call('zscore', KEYS[5], ARGV[2]) then
  redis.call('zadd', KEYS[5], left + now + 300000, ARGV[2])
  redis.call('rpush', KEYS[4], ARGV[2])
end
return left
"""

FAIR_END = """
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return false end
redis.call('del', KEYS[1])
local first = redis.call('lindex', KEYS[4], 0)
if first then redis.call('publish', KEYS[2] .. ':' .. first, 0) end
return 1
"""


class Redisson(Lock):
    """A lock's scripts, and the channel for its releases."""

    take, end, channel, suffix = PLAIN, PLAIN_END, "redisson_lock__channel:{%s}", ""

    def open(self):
        self.client = redis.Redis(port=int(self.address))
        self.own = "%s:1%s" % (uuid.uuid4(), self.suffix)
        self.told = self.channel % self.name
        self.keys = [self.name, self.told, "{%s}:%s:rwlock_timeout" % (self.name, self.own)]
        self.keys += ["redisson_lock_queue:{%s}" % self.name, "redisson_lock_timeout:{%s}" % self.name]

    def ask(self, waits):
        return self.client.eval(self.take, 5, *self.keys, int(self.ttl * 1000), self.own, int(waits))

    def attempt(self):
        return self.ask(False) is None

    def lock(self):
        """Retries only after a message or at the reported end of the lease."""
        told = self.client.pubsub()
        told.subscribe(self.told)
        told.get_message(timeout=5)
        while True:
            left = self.ask(True)
            if left is None:
                told.close()
                return True
            until = time.monotonic() + left / 1000
            while time.monotonic() < until and not told.get_message(ignore_subscribe_messages=True, timeout=until - time.monotonic()):
                pass

    def release(self):
        if self.client.eval(self.end, 5, *self.keys, self.own) is None:
            raise RuntimeError("not locked by this thread")


class Write(Redisson):
    take, end, channel, suffix = WRITE, SHARE_END, "redisson_rwlock:{%s}", ":write"


class Read(Redisson):
    take, end, channel = READ, SHARE_END, "redisson_rwlock:{%s}"


class Fair(Redisson):
    take, end = FAIR, FAIR_END

    def open(self):
        super().open()
        # A release is published to the first client in the queue only.
        self.told = "%s:%s" % (self.told, self.own)


KINDS = {"lock": Redisson, "write": Write, "read": Read, "fair": Fair}
