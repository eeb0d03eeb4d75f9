"""Starts roles on a store, kills and stops them by dice, and at last lets everything come to rest.

It kills (SIGKILL, and SIGTERM for roles that end well by it) and stops (SIGSTOP, for up to a second unless told
otherwise). Sometimes a stopped process gets a successor: then it is a *zombie*, and what it does when it goes on must
not matter. At the end producers finish, groups catch up, and the final readers read everything.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import klamm
from klamm.disk import _os
from tests.crash.checker import COMMITTED, UNCOMMITTED
from tests.crash.diagnosis import last_words, standings
from tests.crash.history import ENDING, History, Recorder, now, read
from tests.crash.jepsen_workload import IN, OUT, Life, record_poll
from tests.crash.run_roles import RUNNING
from tests.procs import Child, Flag, children, until

SMALL = {"segment.bytes": "30000", "index.interval.bytes": "1000"}
PATIENCE_S = 60.0


class Restless(AssertionError):
    """What has to happen at the end does not. It says how groups stand, and what the processes that live did last."""


class RoleFailed(AssertionError):
    """A process ended neither by SIGKILL nor well. It may have met an error that client_errors.py does not allow."""


Role = Callable[[Life], None]
Roles = Sequence[tuple[Role, int]]  # how many of each
_EXTRA_S = 180.0  # so much longer a run with too little luck may take, on a busy machine
ALONE = ("retrying", "forgetful", "server")  # roles that have no successor while they live: nobody fences them


@dataclass(eq=False)
class Slot:
    name: str
    role: Role
    writes: bool
    again: bool = True  # whether it gets another life
    lives: int = 0
    process: str = ""
    child: Child | None = None
    wakes: float = 0.0  # stopped until then
    is_terminated: bool = False  # SIGTERM was sent


class Nemesis:
    """One run: a store, processes, a history."""

    def __init__(
        self,
        directory: Path,
        store: Path,
        seed: int,
        writers: Roles,
        readers: Roles,
        *,
        patience_ms: int = 300,
        pause_s: float = 0.1,
        topics: Sequence[str] = (IN, OUT),
        prepare: Callable[[], None] = lambda: None,
        least_kills: int = 0,
        least_ends: int = 0,
        stop_share: float = 0.3,
        stop_s: float = 1.0,
        rest_s: float = PATIENCE_S,
        end_well: Sequence[str] = (),
    ) -> None:
        """`patience_ms`: how long half of the members may go without a poll; less than a stop can take.

        `pause_s`: the longest time from strike to strike. `prepare` is called in each process before its role.
        `least_kills`, `least_ends`: a run that had less luck lasts longer. `stop_share` of the strikes stop a process
        for up to `stop_s`, and a third of these start a successor beside it; the others kill. `rest_s`: how long groups
        may make no progress at the end. `end_well`: roles of which every other one gets SIGTERM instead of
        SIGKILL, once, and is to end by itself.
        """
        self.directory = directory
        self.store = str(store)
        self.seed = seed
        self.kills = 0
        self.ends = 0
        """How many processes SIGTERM has ended well."""
        self._least_kills = least_kills
        self._least_ends = least_ends
        self._stop_share = stop_share
        self._stop_s = stop_s
        self._rest_s = rest_s
        self._end_well = end_well
        self._patience_ms = patience_ms
        self._pause_s = pause_s
        self._topics = topics
        self._prepare = prepare
        self._written = self._drained = 0.0  # when producers, and then all, were told to end
        self._dice = random.Random(seed)
        self._slots = [
            Slot(f"{role.__name__}-{n}", role, writes)
            for roles, writes in ((writers, True), (readers, False))
            for role, count in roles
            for n in range(count)
        ]
        self._record = Recorder(directory, "nemesis")

    def run(self, seconds: float, partitions: int = 3) -> History:
        """What happened."""
        self._record("started", role="nemesis")
        with klamm.open(self.store) as store:
            for topic in self._topics:
                store.topics.create(topic, partitions, SMALL)
        with children() as self._fork:
            self._begin()
            for slot in self._slots:
                self._start(slot)
            self._wait(self._have_begun, "writers begin")
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline or (not self._enough() and time.monotonic() < deadline + _EXTRA_S):
                time.sleep(self._dice.random() * self._pause_s)
                self._look_after()
                self._strike(self._dice.choice(self._slots))
            assert self._enough(), f"{self.kills} kills after {seconds + _EXTRA_S} s"
            self._come_to_rest()
        self._record.close()
        return History.load(self.directory)

    def _begin(self) -> None:
        """Before the first role starts."""

    def _have_begun(self) -> bool:
        """Whether each writer has done something: else, on a busy machine, a short run would be over before."""
        return all(self._acts(slot.process) > 1 for slot in self._slots if slot.writes)

    def _acts(self, process: str) -> int:
        """Return how many lines it has written down, but for errors."""
        path = self.directory / f"{process}{ENDING}"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return sum(1 for line in lines if b',"met",' not in line)

    def _enough(self) -> bool:
        """Whether this run was violent enough to say something."""
        return self.kills >= self._least_kills and self.ends >= self._least_ends

    # ---- processes

    def _start(self, slot: Slot) -> None:
        life, slot.lives = slot.lives, slot.lives + 1
        slot.process = f"{slot.name}-{life}"
        slot.is_terminated = False
        step = self._step()

        def run() -> None:
            self._prepare()
            _os.trap(step, signal=signal.SIGKILL)
            slot.role(self._life(slot.name, life))
            _os.trap(0)

        slot.child = self._fork(run)

    def _step(self) -> int:
        """At which step of its own a process is killed; 0: at none."""
        dice = self._dice
        return dice.choice([0, 0, dice.randrange(1, 300), dice.randrange(1, 3000)])

    def _life(self, slot: str, life: int) -> Life:
        return Life(self.directory, self.store, slot, life, self.seed, self._patience_ms)

    def _strike(self, slot: Slot) -> None:
        child = slot.child
        if child is None or slot.wakes:
            return
        luck = self._dice.random()
        if luck > self._stop_share:
            if slot.role.__name__ in self._end_well and not slot.is_terminated and self._dice.random() < 0.5:
                self._record("terminating", process=slot.process)
                slot.is_terminated = True
                child.signal(signal.SIGTERM)
                return
            self._record("killing", process=slot.process)
            child.kill()
            self._look_after()
            return
        self._record("stopping", process=slot.process)
        child.signal(signal.SIGSTOP)
        slot.wakes = time.monotonic() + self._dice.random() * self._stop_s
        if luck < self._stop_share / 3 and slot.again and slot.role.__name__ not in ALONE:
            zombie = replace(slot, again=False)
            self._slots.append(zombie)
            slot.wakes = 0.0
            self._start(slot)

    def _look_after(self) -> None:
        """See who has ended, start their next lives, and let go on who was stopped long enough."""
        for slot in list(self._slots):
            self._wake_if_due(slot)
            if slot.child is None or slot.child.running:
                continue
            self._see_off(slot)
            if not slot.again:
                self._slots.remove(slot)
            elif not (self._written if slot.writes else self._drained):
                self._start(slot)

    def _wake_if_due(self, slot: Slot) -> None:
        if slot.wakes and time.monotonic() > slot.wakes:
            self._wake(slot)

    def _see_off(self, slot: Slot) -> None:
        """Of a process that has ended: by SIGKILL, or well."""
        assert slot.child is not None
        status = slot.child.ended()
        killed = os.WIFSIGNALED(status) and self._may_die_by(slot, os.WTERMSIG(status))
        if not killed and status != 0:
            raise RoleFailed(f"{slot.process} ended with {status:#x}\n{slot.child.error}")
        self.ends += slot.is_terminated and not killed
        if killed:
            self.kills += 1
            self._record("killed", process=slot.process)
        slot.child.close()
        slot.child, slot.wakes = None, 0.0

    def _may_die_by(self, slot: Slot, number: int) -> bool:
        """Whether that signal may end it: SIGTERM does before the role can handle it. One that can says so: RUNNING."""
        if number == signal.SIGTERM and slot.is_terminated:
            path = self.directory / f"{slot.process}{ENDING}"
            return not path.exists() or not any(event.kind == RUNNING for event in read(path))
        return number == signal.SIGKILL

    def _wake(self, slot: Slot) -> None:
        slot.wakes = 0.0
        if slot.child is not None:
            slot.child.go_on()
            self._record("going", process=slot.process)

    # ---- the end

    def _come_to_rest(self) -> None:
        """Producers end, groups catch up, all end, and the final readers read."""
        for slot in self._slots:
            self._wake(slot)
        Flag(self.directory / "written").up()
        self._written = time.monotonic()
        self._wait(lambda: not any(slot.child for slot in self._slots if slot.writes), "producers end")
        with klamm.open(self.store) as store:
            self._wait_for_groups(store)
        Flag(self.directory / "drained").up()
        self._drained = time.monotonic()
        self._wait(lambda: not any(slot.child for slot in self._slots), "everybody ends")
        self._end()
        read_everything(self.directory, self.store, self._topics)

    def _wait_for_groups(self, store: klamm.Store) -> None:
        """Wait until groups have read everything. A slow machine may take its time; only a standstill is bounded."""
        left = unread(store)

        def is_less() -> bool:
            nonlocal left
            before, left = left, unread(store)
            return left < before

        while left:
            self._wait(is_less, "groups have read everything, or more than before", self._rest_s)

    def _end(self) -> None:
        """After the last role has ended."""

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        def look() -> bool:
            self._look_after()
            return holds()

        try:
            until(look, what, seconds)
        except RoleFailed:
            raise
        except AssertionError as error:
            raise Restless("\n".join([str(error), *self._diagnosis()])) from error

    def _diagnosis(self) -> list[str]:
        """Return how everything stands."""
        living = [slot.process for slot in self._slots if slot.child is not None]
        with klamm.open(self.store) as store:
            return [*standings(store), *(line for process in living for line in last_words(self.directory, process))]


def unread(store: klamm.Store) -> int:
    """Return how many offsets are left to all groups, and of open transactions; 0: nothing that can be read is left."""
    core = store._acquired()
    ends = [partition.ends() for partition in core.topic(IN).partitions()]
    left = sum(each.end - each.stable for each in ends)
    for name in core.groups.names():
        rows = core.groups.offsets(core.groups.get(name).number)
        stands = {number: row.offset for (_, number), row in rows.items()}
        start = {number: stands.get(number, 0) for number in range(len(ends))}
        with store.consumer(IN, start=start, wait=0) as rest:
            if rest.poll():
                left += sum(each.stable - start[number] for number, each in enumerate(ends))
    return left


def read_everything(directory: Path, path: str, topics: Sequence[str]) -> None:
    """The final readers."""
    with klamm.open(path) as store:
        store.maintain()
        for topic in store.topics:
            for partition in store._acquired().topic(topic).partitions():
                ends = partition.ends()
                assert ends.stable == ends.end, f"{topic}/{partition.number}: open at {ends.stable}, ends at {ends.end}"
        for isolation in COMMITTED, UNCOMMITTED:
            record = Recorder(directory, f"final-{isolation}")
            record("started", role="final", isolation=isolation)
            for topic in topics:
                with store.consumer(topic, start="earliest", wait=0, isolation=isolation) as consumer:
                    for batch in consumer.batches():
                        record_poll(record, now(), batch)
            record.close()


__all__ = ["Nemesis", "Restless", "Role", "RoleFailed", "Roles", "Slot"]
