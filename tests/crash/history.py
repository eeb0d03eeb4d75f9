"""What happened, as each process wrote it down: one file of JSON lines a process, from which checker.py judges.

A line is written with one write(2) to a file opened with O_APPEND, before or after what it speaks of: a process that
is killed loses at most the line it was writing. Times are CLOCK_MONOTONIC in nanoseconds, one clock for all processes
of a host.

Names in -ing are written before a call, the others after it has returned: what is between the two may have happened
or not if the process was killed there, and certainly had not happened before the first.

    started     role                                      the first line; of a reader: isolation; of a member: group,
                                                          topic, output (None: at least once), patience_ms; door, which
                                                          is "kafka" at a server
    sending     topic, ids, tx                            records, by their unique names; tx: None, or a transaction
    sent        topic, ids, places                        [partition, offset] of each, acknowledged; offset: None, if
                                                          that was not told
    committing  tx  ·  committed  tx  ·  aborting  tx  ·  aborted  tx, why
    polled      since, topic, partition, begin, end, records       [offset, value] of each; since: when poll was called
    moved       topic, partition, begin                   rewound: the next poll begins there; without `begin`: at what
                                                          the group has committed
    assigned    places  ·  revoked  places  ·  lost  places        [topic, partition] of each, as the callbacks say it
    processed   topic, partition, offsets                 what the group is for was done for these records
    storing     group, topic, partition, end, tx          progress of a group is committed; with tx: as a part of it
    stored      ... the same                              without a transaction; one with it is stored when committed
    refused     ... the same                              it was not
    unsettled   ... the same                              it failed: stored or not, but not from now on
    closing                                               the consumer is closed from now on
    met         call, error, action                       an error, and what the table of client_errors.py says of it
    renewed                                               a transactional producer was made again (wire_workload.py)
    went_back   topic, partition, begin, end  ·  hung  call        see wire_life.py; the process kills itself
    running                                               a run reads: from now on SIGTERM ends it well (run_roles.py)
    terminating process                                   the nemesis: SIGTERM is sent
    killing     process  ·  killed  process               the nemesis: SIGKILL is sent; the process is gone
    crashed     process, signal                           ... it was gone by another signal, which librdkafka may cause
    hung        process, call                             ... it did not end when it was told to
    stopping    process  ·  going  process                SIGSTOP, SIGCONT
    ended                                                 a pipe has ended by SIGTERM, or when it was told to
    differs     what                                      ... the nemesis: not what the reference says (client/pipes.py)

Roles: producer, reader, member, pipe, nemesis; `handler`, a worker process of a member; `final`, a reader that came
when all else was over and read everything.

A value is the record's name; one that was made of another record is `name<topic/partition/offset/name of that one`.
Names are `process.number`, and numbers grow as the process sends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Place = tuple[str, int]  # topic, partition

ENDING = ".history"


@dataclass(frozen=True, slots=True)
class Event:
    time: int
    process: str
    kind: str
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    @property
    def place(self) -> Place:
        return self.facts["topic"], self.facts["partition"]

    @property
    def places(self) -> list[Place]:
        """Of `assigned`, `revoked`, `lost`."""
        return [(topic, partition) for topic, partition in self.facts["places"]]


class Recorder:
    """Writes the history of this process. Any thread may."""

    def __init__(self, directory: Path | str, process: str) -> None:
        self.process = process
        self.path = Path(directory, process + ENDING)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __call__(self, kind: str, **facts: object) -> None:
        line = json.dumps([time.monotonic_ns(), kind, facts], separators=(",", ":")).encode() + b"\n"
        written = os.write(self._file, line)
        assert written == len(line), f"{self.path}: a line was cut short"

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Event]:
    """The events of one process, in its order."""
    *lines, torn = path.read_bytes().split(b"\n")  # a line without its end was being written at the kill
    del torn
    name = path.name.removesuffix(ENDING)
    return [Event(at, name, kind, facts) for at, kind, facts in map(json.loads, lines)]


class History:
    """Events of all processes: each in its own order, and all by time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.by_process: dict[str, list[Event]] = {}
        for event in events:
            self.by_process.setdefault(event.process, []).append(event)
        # Two threads of a process may write in another order than they looked at the clock.
        self.by_time = sorted(
            (event for each in self.by_process.values() for event in each), key=lambda each: each.time
        )

    def of(self, *kinds: str) -> Iterator[Event]:
        """Events of these kinds, by time."""
        return (event for event in self.by_time if event.kind in kinds)

    def start_of(self, process: str) -> dict[str, Any]:
        """What a process said of itself."""
        first = self.by_process[process][0]
        return first.facts if first.kind == "started" else {}

    @classmethod
    def load(cls, directory: Path | str) -> History:
        return cls(event for path in sorted(Path(directory).glob("*" + ENDING)) for event in read(path))


def now() -> int:
    return time.monotonic_ns()


__all__ = ["ENDING", "Event", "History", "Place", "Recorder", "now", "read"]
