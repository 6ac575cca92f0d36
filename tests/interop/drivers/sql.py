"""Locks of SQL servers, through their own clients. The address is psql's, or the socket and the database for mariadb."""

import subprocess
import time
import uuid

from driver import Lock

END = "-- that was all --"


class Client:
    """A session of `psql` or `mariadb`, which reads statements from a pipe."""

    def __init__(self, address):
        self.postgres = address.startswith("postgres:")
        if self.postgres:
            words = ["psql", "-X", "-q", "-A", "-t", address]
        else:
            socket, database = address.split(",")
            words = ["mariadb", "--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--user", "root"]
            words += ["--socket", socket, "--database", database]
        self.program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, sql):
        """Returns the first column of the first row of the answer."""
        self.program.stdin.write("%s;\nSELECT '%s';\n" % (sql, END))
        lines = []
        while not lines or lines[-1] != END:
            line = self.program.stdout.readline()
            if not line:
                raise RuntimeError("the session ended")
            lines.append(line.rstrip("\n"))
        return lines[0] if len(lines) > 1 else None


class Advisory(Lock):
    """The name is the SQL argument of the lock functions."""

    def open(self):
        self.client = Client(self.address)

    def attempt(self):
        ask = "pg_try_advisory_lock(%s)" if self.client.postgres else "GET_LOCK(%s, 0)"
        return self.client.ask("SELECT " + ask % self.name) in ("t", "1")

    def lock(self):
        if self.client.postgres:
            self.client.ask("SELECT pg_advisory_lock(%s)" % self.name)
            return True
        return self.client.ask("SELECT GET_LOCK(%s, 30)" % self.name) == "1"

    def release(self):
        ask = "pg_advisory_unlock(%s)" if self.client.postgres else "RELEASE_LOCK(%s)"
        if self.client.ask("SELECT " + ask % self.name) not in ("t", "1"):
            raise RuntimeError("not held")


class AdvisoryShared(Advisory):
    def lock(self):
        self.client.ask("SELECT pg_advisory_lock_shared(%s)" % self.name)
        return True

    def attempt(self):
        return self.client.ask("SELECT pg_try_advisory_lock_shared(%s)" % self.name) == "t"

    def release(self):
        self.client.ask("SELECT pg_advisory_unlock_shared(%s)" % self.name)


class ShedLock(Lock):
    """The statements of ShedLock's JDBC provider with usingDbTime(): insert a row, or update an expired one. The table is dlock."""

    def open(self):
        self.client = Client(self.address)
        if self.client.postgres:
            self.now = "timezone('utc', CURRENT_TIMESTAMP)"
            self.end = "%s + interval '%d milliseconds'" % (self.now, self.ttl * 1000)
        else:
            self.now = "UTC_TIMESTAMP(3)"
            self.end = "TIMESTAMPADD(MICROSECOND, %d, UTC_TIMESTAMP(3))" % (self.ttl * 1000000)
        self.own = "host-%s" % uuid.uuid4()
        self.known = False

    def changed(self, sql, check):
        self.client.ask(sql)
        found = self.client.ask("SELECT count(*) FROM dlock WHERE name = '%s' AND %s" % (self.name, check))
        return found == "1"

    def attempt(self):
        # The node remembers that the row exists, and never inserts it again.
        self.own = "host-%s" % uuid.uuid4()
        values = "'%s', %s, %s, '%s'" % (self.name, self.end, self.now, self.own)
        own = "locked_by = '%s'" % self.own
        if not self.known:
            columns = "(name, lock_until, locked_at, locked_by) VALUES(%s)" % values
            into = "INSERT INTO dlock%s ON CONFLICT (name) DO NOTHING" if self.client.postgres else "INSERT IGNORE INTO dlock%s"
            if self.changed(into % columns, own):
                self.known = True
                return True
            self.known = True
        update = "UPDATE dlock SET lock_until = %s, locked_at = %s, %s WHERE name = '%s' AND lock_until <= %s"
        return self.changed(update % (self.end, self.now, own, self.name, self.now), own)

    def release(self):
        sql = "UPDATE dlock SET lock_until = %s WHERE name = '%s' AND locked_by = '%s'"
        self.client.ask(sql % (self.now, self.name, self.own))


class LocalTime(ShedLock):
    """Without usingDbTime(): the node's local time, in a zone ahead of UTC, in a column without a time zone."""

    def open(self):
        super().open()
        shift = "interval '3 hours'" if self.client.postgres else "INTERVAL 3 HOUR"
        self.now, self.end = "(%s + %s)" % (self.now, shift), "(%s + %s)" % (self.end, shift)


KINDS = {"advisory": Advisory, "advisory-shared": AdvisoryShared, "shedlock": ShedLock, "shedlock-local-time": LocalTime}
