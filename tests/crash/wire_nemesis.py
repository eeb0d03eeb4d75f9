"""The nemesis with a server that is killed and stopped as everybody else is, and started again at its port.

It dies at any moment, or at a step of its own that was chosen by dice: in an append, in a commit of offsets, while it
writes the markers of a transaction, while it starts. At the end it stops by SIGTERM, and has to do that well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import klamm
from klamm.console.history import HISTORY_TOPIC
from klamm.disk import _os
from klamm.store.groups import OffsetRow
from tests.crash.diagnosis import members_at
from tests.crash.history import ENDING
from tests.crash.jepsen_workload import IN, OUT, Life
from tests.crash.nemesis import Nemesis, Restless, Roles, Slot
from tests.crash.wire_life import SERVER_LIVES, WireLife
from tests.crash.wire_workload import GROUPS, WIRED, read_everything_by_wire
from tests.procs import until
from tests.serving import free_port, listens, serve_here

PATIENCE_MS = 500
ENDS_S = 30.0


def replace_text(path: Path, text: str) -> None:
    """Write a file that others read meanwhile."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def server(life: Life) -> None:
    """Its role: see WireNemesis._serve."""


class WireNemesis(Nemesis):
    """One run: a store, its server, processes at both doors, a history."""

    def __init__(
        self,
        directory: Path,
        store: Path,
        seed: int,
        writers: Roles,
        readers: Roles,
        *,
        break_server: Callable[[], None] = lambda: None,
        server_share: float = 0.2,
        **options: Any,
    ) -> None:
        """`server_share`: of the strikes. `break_server` is called in each life of the server before it starts."""
        options = {"patience_ms": PATIENCE_MS, "pause_s": 0.4, "topics": (IN, OUT, WIRED), **options}
        super().__init__(directory, store, seed, writers, readers, **options)
        self.server_kills = 0
        self._port = free_port()
        self._log = directory / "server.log"
        self._break_server = break_server
        self._server_share = server_share
        self._server = Slot("server", server, False)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _life(self, slot: str, life: int) -> Life:
        return WireLife(self.directory, self.store, slot, life, self.seed, self._patience_ms, self._port)

    def _begin(self) -> None:
        with klamm.open(self.store) as store:
            core = store._acquired()
            topic = core.topic(IN)
            start = [OffsetRow(topic.topic.id, number, 0) for number in range(topic.count)]
            for name in {GROUPS[slot.role.__name__] for slot in self._slots if slot.role.__name__ in GROUPS}:
                core.groups.commit(core.groups.claim_door(name, "klamm").number, start)
        self._serve(0)
        until(lambda: listens(f"127.0.0.1:{self._port}"), "the server listens")

    def _enough(self) -> bool:
        if not super()._enough() or self.server_kills < min(1, self._least_kills):
            return False
        return not self._least_kills or self._have_done("committed", "stored")

    def _have_done(self, *kinds: str) -> bool:
        """Whether clients of the server have written down an event of each of these kinds."""
        for path in self.directory.glob(f"wire_*{ENDING}"):
            written = path.read_bytes()
            kinds = tuple(kind for kind in kinds if f',"{kind}",'.encode() not in written)
        return not kinds

    def _serve(self, step: int) -> None:
        slot = self._server
        slot.process, slot.lives = f"server-{slot.lives}", slot.lives + 1
        replace_text(self.directory / SERVER_LIVES, str(slot.lives))

        def run() -> None:
            self._break_server()
            _os.trap(step, signal=signal.SIGKILL)
            serve_here(self.store, self._port, self._log)
            _os.trap(0)

        slot.child = self._fork(run)

    def _strike(self, slot: Slot) -> None:
        super()._strike(self._server if self._dice.random() < self._server_share else slot)

    def _look_after(self) -> None:
        super()._look_after()
        self._kill_hung()
        server = self._server
        self._wake_if_due(server)
        if server.child is not None and not server.child.running:
            self._see_off(server)
            self.server_kills += 1
            self._serve(0 if self._written else self._step())

    def _kill_hung(self) -> None:
        """Kill clients that were told to end ENDS_S ago. A destructor of librdkafka may wait forever, as a call may."""
        for slot in self._slots:
            told = self._written if slot.writes else self._drained
            if slot.child is not None and "wire" in slot.name and told and time.monotonic() > told + ENDS_S:
                self._record("hung", process=slot.process, call="end")
                slot.child.signal(signal.SIGUSR1)  # its traceback: see WireLife
                time.sleep(0.1)
                slot.child.kill()

    def _may_die_by(self, slot: Slot, number: int) -> bool:
        """librdkafka does not bear everything that happens to it here. Who has the store open has to."""
        if "wire" in slot.name and number in (signal.SIGABRT, signal.SIGSEGV):
            self._record("crashed", process=slot.process, signal=signal.Signals(number).name)
            return True
        if "wire" in slot.name and number == signal.SIGUSR1:
            return True  # it hung before it could tell where it is: see _kill_hung
        return super()._may_die_by(slot, number)

    def _come_to_rest(self) -> None:
        self._wake(self._server)
        super()._come_to_rest()

    def _diagnosis(self) -> list[str]:
        """Ask the server for members, too; in a child, as threads of librdkafka do not survive a fork."""
        groups = sorted({GROUPS[name] for slot in self._slots if (name := slot.role.__name__) in GROUPS})
        child = self._fork(lambda: members_at(f"127.0.0.1:{self._port}", groups))
        try:
            members = child.answer()
        except AssertionError as error:
            members = [f"the server does not say who the members are: {error}"]
        return [*super()._diagnosis(), *members, *self.log.splitlines()[-20:]]

    def _end(self) -> None:
        with klamm.open(self.store) as store:
            store.maintain()
            ours = [topic for topic in store.topics if topic != HISTORY_TOPIC]
            ends = {topic: [each.end for each in store.topics.describe(topic).partitions] for topic in ours}
        child = self._fork(lambda: read_everything_by_wire(self.directory, self._port, ends))
        self._wait(lambda: not child.running, "the final reader of the wire ends")
        if elsewhere := child.answer():
            raise Restless(str(elsewhere))
        self._wait(self._has_stopped, "the server stops")
        assert "Traceback" not in self.log, self.log[-8000:]

    def _has_stopped(self) -> bool:
        """By SIGTERM. One that dies at its step before it has done so is started again (_look_after), and gets the
        signal when it listens: before it has a handler, it would die of it.
        """
        server = self._server
        assert server.child is not None
        if not listens(f"127.0.0.1:{self._port}"):
            return False
        server.child.signal(signal.SIGTERM)
        if os.WIFSIGNALED(server.child.ended()):
            return False
        assert server.child.status == 0, self.log[-4000:]
        server.child.close()
        server.child = None
        return True
