"""Acquires and releases one lock of a library: driver.py LIBRARY ADDRESS NAME TTL

Reads commands from standard input, and answers each with one line:
  try           held | busy | raised TYPE
  lock          the same, but waits for the lock
  release       free | raised TYPE
  race S FILE   counted N: for S seconds, acquires the lock, adds 1 to the number in FILE and releases the lock
"""

import random
import sys
import time


class Lock:
    """The interface to a library. A library that can't wait retries after a pause, as its documentation says."""

    def __init__(self, address, name, ttl):
        self.address, self.name, self.ttl = address, name, ttl
        self.open()

    def lock(self):
        until = time.monotonic() + 30
        while not self.attempt():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


def race(lock, seconds, path):
    """Reads and writes the counter in two steps, so that two simultaneous holders lose an update."""
    until, counted = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        try:
            held = lock.attempt()
        except Exception:  # some libraries raise instead of waiting
            held = False
        if held:
            with open(path) as file:
                count = int(file.read())
            time.sleep(0.005)
            with open(path, "w") as file:
                file.write(str(count + 1))
            lock.release()
            counted += 1
        time.sleep(random.uniform(0.001, 0.04))
    return counted


def answer(lock, word, rest):
    if word == "race":
        return "counted %d" % race(lock, float(rest[0]), rest[1])
    try:
        if word == "release":
            lock.release()
            return "free"
        return "held" if (lock.lock() if word == "lock" else lock.attempt()) else "busy"
    except Exception as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
        return "raised " + type(error).__name__


def main():
    library, address, name, ttl = sys.argv[1:]
    module, _, kind = library.partition(":")
    lock = __import__(module).KINDS[kind](address, name, float(ttl))
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        print(answer(lock, word, rest), flush=True)


if __name__ == "__main__":
    sys.modules["driver"] = sys.modules["__main__"]
    main()
