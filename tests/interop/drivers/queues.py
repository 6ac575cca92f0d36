"""Locks on ZooKeeper and etcd, at HOST:PORT."""

import base64
import json
import select
import signal
import subprocess
import urllib.request

from driver import Lock


class Kazoo(Lock):
    patterns = ["-lock-"]
    kind = "Lock"

    def open(self):
        from kazoo.client import KazooClient

        self.client = KazooClient(hosts=self.address, timeout=self.ttl)
        self.client.start()
        self.held = getattr(self.client, self.kind)(self.name, extra_lock_patterns=self.patterns)

    def attempt(self):
        return self.held.acquire(blocking=False)

    def lock(self):
        return self.held.acquire(timeout=30)

    def release(self):
        self.held.release()


class Write(Kazoo):
    kind = "WriteLock"


class Read(Kazoo):
    patterns = ["-__WRIT__"]
    kind = "ReadLock"


class Default(Kazoo):
    patterns = []


class Semaphore(Kazoo):
    def open(self):
        super().open()
        self.held = self.client.Semaphore(self.name)


class Etcdctl(Lock):
    """The etcdctl program, which holds the lock until a signal stops it."""

    def open(self):
        self.program = None

    def take(self, seconds):
        words = ["etcdctl", "--endpoints", "http://" + self.address, "lock", "--ttl", str(int(self.ttl)), self.name]
        self.program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
        # It prints its key once it has the lock.
        if select.select([self.program.stdout], [], [], seconds)[0] and self.program.stdout.readline():
            return True
        self.release()
        return False

    def attempt(self):
        return self.take(0.6)

    def lock(self):
        return self.take(30)

    def release(self):
        self.program.send_signal(signal.SIGINT)
        self.program.wait()


class LockService(Lock):
    """The server's own lock service, through its JSON gateway."""

    def open(self):
        pass

    def ask(self, path, body, seconds=10):
        request = urllib.request.Request("http://%s/v3/%s" % (self.address, path), json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)

    def take(self, seconds):
        self.lease = self.ask("lease/grant", {"TTL": int(self.ttl)})["ID"]
        name = base64.b64encode(self.name.encode()).decode()
        try:
            self.ask("lock/lock", {"name": name, "lease": self.lease}, seconds)
            return True
        except TimeoutError:
            self.release()
            return False

    def attempt(self):
        return self.take(0.4)

    def lock(self):
        return self.take(30)

    def release(self):
        self.ask("lease/revoke", {"ID": self.lease})


class Etcd3(Lock):
    def open(self):
        import etcd3

        host, port = self.address.split(":")
        self.held = etcd3.client(host=host, port=int(port)).lock(self.name, ttl=int(self.ttl))

    def attempt(self):
        return self.held.acquire(timeout=0.3)

    def lock(self):
        return self.held.acquire(timeout=30)

    def release(self):
        self.held.release()


KINDS = {
    "kazoo": Kazoo,
    "kazoo-write": Write,
    "kazoo-read": Read,
    "kazoo-default": Default,
    "kazoo-semaphore": Semaphore,
    "etcdctl": Etcdctl,
    "lock-service": LockService,
    "etcd3": Etcd3,
}
