"""Libraries whose lock is a string on one or several Redis servers; the address lists the ports."""

import logging

import pottery
import redis
import redis_lock
import redlock
from driver import Lock

logging.getLogger().setLevel(logging.CRITICAL)


class OfRedis(Lock):
    def open(self):
        self.clients = [redis.Redis(port=int(port)) for port in self.address.split(",")]
        self.make(self.clients[0])

    def release(self):
        self.held.release()


class RedisPy(OfRedis):
    def make(self, client):
        self.held = client.lock(self.name, timeout=self.ttl, sleep=0.05)

    def attempt(self):
        return self.held.acquire(blocking=False)

    def lock(self):
        return self.held.acquire(blocking_timeout=30)


class WithoutEnd(RedisPy):
    """The default of redis-py."""

    def make(self, client):
        self.held = client.lock(self.name, sleep=0.05)


class PythonRedisLock(OfRedis):
    def make(self, client):
        self.held = redis_lock.Lock(client, self.name, expire=int(self.ttl))

    def attempt(self):
        return self.held.acquire(blocking=False)


class RedlockPy(OfRedis):
    def make(self, client):
        self.manager = redlock.Redlock(self.clients, retry_count=1, retry_delay=0.05)

    def attempt(self):
        self.held = self.manager.lock(self.name, int(self.ttl * 1000))
        return bool(self.held)

    def release(self):
        self.manager.unlock(self.held)


class Pottery(OfRedis):
    def make(self, client):
        self.held = pottery.Redlock(key=self.name, masters=set(self.clients), auto_release_time=self.ttl)

    def attempt(self):
        return self.held.acquire(blocking=False)

    def lock(self):
        return self.held.acquire(timeout=30)


KINDS = {
    "redis-py": RedisPy,
    "redis-py-without-end": WithoutEnd,
    "python-redis-lock": PythonRedisLock,
    "redlock-py": RedlockPy,
    "pottery": Pottery,
}
