"""How long after a group's member was killed does its successor process the first record?

Two members share two partitions, both of which get a record every few milliseconds. One is killed (SIGKILL); the figure
is the time until the other hands out a record of the dead one's partition. It is not notified: it finds the lock free.
"""

from __future__ import annotations

import os
import signal
import time

import _harness as harness
import klamm
from _processes import _spawn


def member(pipe, path: str) -> None:
    with klamm.open(path) as store, store.consumer("bench", group="bench") as consumer:
        while True:
            batch = consumer.poll(timeout=0.05)
            if batch:
                pipe.send((batch.partition, time.monotonic()))
                consumer.commit(batch)


def takeover() -> float:
    """Seconds."""
    with harness.folder() as path:
        store = klamm.open(path + "/store")
        store.topics.create("bench", partitions=2)
        members = []
        for _ in range(2):
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=member, args=(theirs, path + "/store"))
            process.start()
            theirs.close()
            members.append((process, ours))
        owners: dict[int, int] = {}  # partition: who handed out its last record
        killed_at, victim = 0.0, -1
        settled = 0
        until = time.monotonic() + 60
        try:
            while time.monotonic() < until:
                for partition in range(2):
                    store.append("bench", b"x", partition=partition, acks=1)
                time.sleep(0.005)
                for number, (_, pipe) in enumerate(members):
                    while number != victim and pipe.poll():
                        partition, at = pipe.recv()
                        if victim >= 0 and at > killed_at and owners[partition] == victim:
                            return at - killed_at
                        if victim < 0:
                            owners[partition] = number
                settled = settled + 1 if set(owners.values()) == {0, 1} else 0
                if settled == 100 and victim < 0:
                    victim = 0
                    killed_at = time.monotonic()
                    os.kill(members[victim][0].pid or 0, signal.SIGKILL)
            raise RuntimeError("no member took over within a minute")
        finally:
            for process, _ in members:
                process.kill()
                process.join()
            store.close()


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=9)
    found = [takeover() for _ in range(options.rounds)]
    harness.answer(
        "from SIGKILL of a member to its successor's first record",
        found,
        want=harness.at_most(0.6, "figure"),
        unit="s",
        worst=harness.digits(max(found)),
    )


if __name__ == "__main__":
    main()
