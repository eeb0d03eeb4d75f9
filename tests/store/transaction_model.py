"""A store's transactions in memory, around the pure machine: dicts for tables, and what a log refuses.

It acts the scripts of transaction_histories.py out. What it cannot know are rows whose markers wait for a later sync:
those of processes that are decided are left out of its states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from klamm.store.transaction_state import (
    MAX_EPOCH,
    ONGOING,
    PROCESS,
    SERVER,
    Add,
    CommitOffsets,
    End,
    Event,
    Fence,
    Init,
    Marked,
    Now,
    Outcome,
    Resolve,
    Row,
    Step,
    step,
)
from klamm.types import TopicId
from tests.store.transaction_histories import NAMES, TIMEOUT_MS

__all__ = ["Model"]

_CODES = {
    Outcome.OK: "NONE",
    Outcome.UNKNOWN: "INVALID_PRODUCER_ID_MAPPING",
    Outcome.FENCED: "PRODUCER_FENCED",
    Outcome.CONCURRENT: "CONCURRENT_TRANSACTIONS",
    Outcome.INVALID: "INVALID_TXN_STATE",
}


class _Raised(Exception):
    """Its text is the name of an error."""


@dataclass
class _Identity:
    producer_id: int
    name: str | None
    epoch: int = 0
    partitions: set[int] = field(default_factory=set)


@dataclass
class _Client:
    name: str
    bumps: bool
    producer_id: int = -1
    epoch: int = -1


class Model:
    def __init__(self, kind: str) -> None:
        self.rows: dict[tuple[int, int], Row] = {}
        self.names: dict[str, int] = {}
        self.held: set[int] = set()
        self.seen: dict[tuple[int, int], int] = {}  # partition, producer id: the epoch in the log
        self.identities: dict[str, _Identity] = {}
        self.decided: dict[str, bool] = {}
        self.clients: dict[str, _Client] = {}
        self.copy: dict[int, Row] = {}  # the server's
        self.copied_names: dict[str, int] = {}
        self.changes = self.copied_changes = 0
        self.next_id = self.number = self.boot_ms = 0
        self.is_up, self.is_blocked = kind == "wire", False
        self.batch: tuple[int, str] | None = None

    def act(self, word: str) -> str | None:
        """The answer; None if it is not the machine's."""
        self.boot_ms += 1
        actor, *rest = word.split()
        try:
            if actor[0] == "w" and actor[1:].isdigit():
                return self._client(actor, *rest) if self.is_up else "-"
            if actor[0] == "s" and actor[1:].isdigit():
                return str(self._spark(actor, *rest))
            if actor[0] == "e" and actor[1:].isdigit():
                return str(self._embedded(actor, *rest))
            return str(self._anybody(actor, *rest))
        except _Raised as error:
            return str(error)

    def state(self) -> set[str]:
        return {
            f"{row.producer_id}.{row.epoch}{'o' if row.is_ongoing else 'C' if row.is_committed else 'A'}"
            + "".join(str(number) for _, number in sorted(row.partitions))
            for row in self.rows.values()
            if row.is_ongoing or (row.is_prepared and row.owner == SERVER)
        }

    def _now(self) -> Now:
        return Now("boot", self.boot_ms, self.boot_ms, self.boot_ms)

    def _fresh_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _apply(self, row: Row | None, event: Event) -> Step:
        """Step, and write what changed."""
        done = step(row, event, self._now())
        for gone in (row, done.retired):
            if gone is not None:
                self.rows.pop(gone.key, None)
        for there in (done.row, done.retired if done.retired is not None and not done.retired.is_over else None):
            if there is not None:
                self.rows[there.key] = there
        return done

    def _of(self, producer_id: int, owner: str) -> list[Row]:
        return sorted(row for row in self.rows.values() if row.producer_id == producer_id and row.owner == owner)

    def _mark(self, row: Row) -> None:
        for _, number in row.partitions:
            key = number, row.producer_id
            if not row.keeps_epoch and self.seen.get(key, -1) < row.next_epoch:
                self.seen[key] = row.next_epoch

    def _finish(self, row: Row) -> Row | None:
        if self.is_blocked:
            return row
        self._mark(row)
        has_name = self.names.get(row.name or "") == row.producer_id
        return self._apply(row, Marked(has_name=has_name)).row

    # ---- everybody

    def _resolve(self, of: int | None = None, *, only_abandoned: bool = False) -> None:
        for row in sorted(self.rows.values()):
            if row.owner == PROCESS and of in (None, row.producer_id):
                is_held = row.producer_id in self.held
                done = step(row, Resolve(is_held), self._now())
                assert done.row is not None
                if done.outcome is Outcome.OK or (row.is_prepared and not (only_abandoned and is_held)):
                    self.rows[row.key] = done.row
                    self._finish(done.row)
        if not self.is_up:
            self._resolve_servers(of)

    def _resolve_servers(self, of: int | None = None) -> None:
        for row in sorted(self.rows.values()):
            if row.owner == SERVER and of in (None, row.producer_id):
                done = self._apply(row, Resolve(is_held=True)).row
                if done is not None and done.is_prepared:
                    self._finish(done)

    def _fence_processes(self, producer_id: int) -> bool:
        outcomes = [self._apply(row, Fence()).outcome for row in self._of(producer_id, PROCESS)]
        return Outcome.OK in outcomes

    def _anybody(self, what: str, actor: str = "") -> object:
        if what == "person":
            owner = self.identities.get(actor) or self.clients.get(actor)
            if owner is None:
                return "-"
            is_found = self._fence_processes(owner.producer_id)
            for row in self._of(owner.producer_id, SERVER):
                if row.is_ongoing:
                    self._apply(row, Fence())
                    self.changes += 1
                    is_found = True
            self._resolve(owner.producer_id)
            return is_found
        if what == "advance":
            self.boot_ms += TIMEOUT_MS + 1_000
        elif what in ("resolve", "abandoned"):
            self._resolve(only_abandoned=what == "abandoned")
        elif what in ("block", "unblock"):
            self.is_blocked = what == "block"
        elif what == "down":
            self.is_up = False
        elif what == "up" and not self.is_up:
            self.is_up = True
            self._resolve_servers()
            self._reload()
        elif what == "tick" and self.is_up:
            self._tick()
        elif what == "last" and self.is_up:
            self._tick()
            client = self.clients.get(actor)
            known = None if client is None else self.copy.get(self.copied_names.get(client.name, -1))
            if client is None or known is None or not known.is_over or known.producer_id != client.producer_id:
                return "-"
            del self.rows[known.key]
            self.rows[known.producer_id, MAX_EPOCH] = known._replace(epoch=MAX_EPOCH, next_epoch=MAX_EPOCH)
            self._reload()
            client.epoch = MAX_EPOCH
        return "ok"

    def _tick(self) -> None:
        if self.changes != self.copied_changes:
            self._reload()
        rows = self.copy.values()
        if any(row.is_prepared or (row.is_ongoing and row.is_late(self._now())) for row in rows):
            self._resolve_servers()
            self._reload()

    def _reload(self) -> None:
        self.copied_changes = self.changes
        self.copy = {row.producer_id: row for row in self.rows.values() if row.owner == SERVER}
        self.copied_names = {name: number for name, number in self.names.items() if number in self.copy}

    # ---- embedded

    def _embedded(self, actor: str, what: str, partition: str = "0") -> object:
        mine = self.identities.get(actor)
        if what == "take" or (mine is None and what == "add"):
            made = self._identity(NAMES.get(actor))
            if mine is not None:
                self.held.discard(mine.producer_id)
            mine = self.identities[actor] = made
            if what == "take":
                self.decided.pop(actor, None)
                return made.producer_id
        if mine is None:
            return "-"
        if what == "add":
            if not mine.partitions:
                self.decided.pop(actor, None)
            self._register(mine, int(partition))
            return self._append(mine.producer_id, mine.epoch, int(partition))
        if what in ("commit", "abort"):
            decided = self._decide(mine, commit=what == "commit")
            if decided is not None:
                self.decided[actor] = decided
            return decided
        if what == "finish":
            if actor not in self.decided:
                return "-"
            del self.decided[actor]
            self._end_identity(mine)
            return mine.epoch
        self.held.discard(self.identities.pop(actor).producer_id)
        return "ok"

    def _identity(self, name: str | None) -> _Identity:
        made = _Identity(self._fresh_id(), name)
        self.held.add(made.producer_id)
        if name is not None:
            before = self.names.get(name)
            if before is not None:
                self._fence_processes(before)
                for row in self._of(before, SERVER):
                    done = self._apply(row, Fence()).row
                    if done is not None and done.is_over:
                        del self.rows[done.key]
                self.changes += 1
            self.names[name] = made.producer_id
            if before is not None:
                self._resolve(before)
        return made

    def _row_of(self, mine: _Identity) -> Row | None:
        if mine.partitions:
            return self.rows.get((mine.producer_id, mine.epoch))
        return Row(mine.producer_id, mine.epoch, PROCESS, name=mine.name, next_epoch=mine.epoch, timeout_ms=TIMEOUT_MS)

    def _check_name(self, mine: _Identity) -> None:
        if mine.name is not None and self.names.get(mine.name) != mine.producer_id:
            raise _Raised("Fenced")

    def _register(self, mine: _Identity, number: int) -> None:
        self._check_name(mine)
        done = self._apply(self._row_of(mine), Add((mine.producer_id, mine.epoch), frozenset({(TopicId("t"), number)})))
        if done.outcome is not Outcome.OK:
            raise _Raised("Aborted")
        mine.partitions.add(number)

    def _append(self, producer_id: int, epoch: int, number: int) -> str:
        key = number, producer_id
        if epoch < self.seen.get(key, 0):
            raise _Raised("Fenced")
        self.seen[key] = epoch
        return "ok"

    def _decide(self, mine: _Identity, *, commit: bool) -> bool | None:
        if not mine.partitions:
            return commit
        if commit:
            self._check_name(mine)
            row = self._row_of(mine)
            if row is None or not row.is_ongoing:
                raise _Raised("Aborted")
        done = self._apply(self._row_of(mine), End((mine.producer_id, mine.epoch), commit, bumps=True))
        if commit and (done.outcome is not Outcome.OK or done.row is None):
            raise _Raised("Aborted")
        return None if done.row is None else done.row.is_committed

    def _end_identity(self, mine: _Identity) -> None:
        for number in mine.partitions:
            self.seen[number, mine.producer_id] = max(mine.epoch + 1, self.seen.get((number, mine.producer_id), 0))
        if mine.partitions:
            mine.partitions, mine.epoch = set(), mine.epoch + 1

    # ---- Spark

    def _spark(self, actor: str, what: str, partition: str = "0") -> object:
        number, plan = self.number // 4, f"offsets {self.number // 5}"
        if what == "other":
            plan = f"records {self.number}/1"
        if what == "again":
            number = max(0, number - 1)
        self.number += 1
        if what in ("look", "again", "other"):
            return self._is_published(number, plan)
        mine = self.identities.get(actor)
        if mine is None:
            mine = self.identities[actor] = self._identity(None)
        if what == "fill":
            return self._embedded(actor, "add", partition)
        if what == "drop":
            self.held.discard(self.identities.pop(actor).producer_id)
            return "ok"
        try:
            row = self._row_of(mine) if mine.partitions else None
            if mine.partitions and (row is None or row.state != ONGOING):
                raise _Raised("Aborted")
            if self._is_published(number, plan):
                raise _Raised("AlreadyCommitted")
            decided = self._decide(mine, commit=True)
            self.batch = number, plan
        except _Raised as error:
            if mine.partitions:
                decided = self._decide(mine, commit=False)
                if decided is not None:
                    self._end_identity(mine)
                    return f"{error} {decided}"
            self.held.discard(self.identities.pop(actor).producer_id)
            return error
        self._end_identity(mine)
        return f"{decided} {mine.epoch}"

    def _is_published(self, number: int, plan: str) -> bool:
        if self.batch is None or number > self.batch[0]:
            return False
        if (number, plan) == self.batch:
            return True
        raise _Raised("BatchConflict")

    # ---- over the wire

    def _client(self, actor: str, what: str, argument: str = "") -> str | None:
        client = self.clients.get(actor)
        if client is None:
            client = self.clients[actor] = _Client(NAMES[actor] or "", actor in ("w0", "w3"))
            what = "init"
        me = client.producer_id, client.epoch
        code: Outcome | str
        if what in ("init", "again"):
            code = self._init(client, me if what == "again" else None)
        elif what == "send":
            code = self._send(client, int(argument))
        elif what == "add":
            code = self._change(client.name, Add(me, frozenset({(TopicId("t"), int(argument))}))).outcome
        elif what == "check":
            return self._check(client, int(argument))
        elif what == "offsets":
            if not client.bumps:
                added = self._change(client.name, Add(me, frozenset(), frozenset({"g"}))).outcome
                if added is not Outcome.OK:
                    return f"{_CODES[added]} {me[0]}.{me[1]}"
            code = self._change(client.name, CommitOffsets(me, "g", client.bumps)).outcome
            if code is Outcome.FENCED:
                return f"INVALID_PRODUCER_EPOCH {me[0]}.{me[1]}"
        elif what in ("commit", "abort"):
            code, producer_id, epoch = self._end(client, me, what == "commit")
            if code is Outcome.OK and client.bumps:
                client.producer_id, client.epoch = producer_id, epoch
        else:
            me = {"repeat": me, "late": (me[0], me[1] - 1), "wrong": (me[0] + 7, me[1])}[what]
            outcome, producer_id, epoch = self._end(client, me, argument != "abort")
            return f"{_CODES[outcome]} {producer_id}.{epoch}"
        text = code if isinstance(code, str) else _CODES[code]
        return f"{text} {client.producer_id}.{client.epoch}"

    def _change(self, name: str, event: Event) -> Step:
        if not isinstance(event, Init | End):
            self._retry(name)
        while True:
            holder = self.names.get(name)
            row = None
            if holder is not None:
                row = next(iter(self._of(holder, SERVER)), None) or Row(holder, 0, PROCESS, name=name)
            if row is not None and row.owner == PROCESS:
                done = step(row, event, self._now())
                if done.outcome is Outcome.OK:
                    assert done.row is not None
                    self._fence_processes(row.producer_id)
                    self.rows[done.row.key] = done.row
            else:
                done = self._apply(row, event)
            if done.outcome is Outcome.NEEDS_ID:
                assert isinstance(event, Init | End)
                event = event._replace(fresh_id=self._fresh_id())
                continue
            break
        if done.outcome in (Outcome.OK, Outcome.CONCURRENT) and done.row is not None and done.row.owner == SERVER:
            if row is not None and row.owner == PROCESS:
                self.names[name] = done.row.producer_id
                self._resolve(row.producer_id)
            self.names[name] = done.row.producer_id
            if done.retired is not None:
                self.copy.pop(done.retired.producer_id, None)
                if not done.retired.is_over:
                    self.copy[done.retired.producer_id] = done.retired
            self.copy[done.row.producer_id] = done.row
            self.copied_names[name] = done.row.producer_id
        return done

    def _finish_copy(self, row: Row) -> Row | None:
        current = next(iter(self._of(row.producer_id, SERVER)), None)
        if self.is_blocked:
            return row
        if current is not None and current.is_prepared:
            current = self._finish(current)
        if current is None:
            self.copy.pop(row.producer_id, None)
            if self.copied_names.get(row.name or "") == row.producer_id:
                del self.copied_names[row.name or ""]
        else:
            self.copy[row.producer_id] = current
        return current

    def _retry(self, name: str) -> None:
        row = self.copy.get(self.copied_names.get(name, -1))
        if row is not None and row.is_prepared:
            self._finish_copy(row)

    def _init(self, client: _Client, before: tuple[int, int] | None) -> Outcome:
        for _ in range(5):
            done = self._change(client.name, Init(client.name, TIMEOUT_MS, before))
            if done.outcome is Outcome.OK:
                assert done.row is not None
                client.producer_id, client.epoch = done.row.producer_id, done.row.next_epoch
            if done.outcome is not Outcome.CONCURRENT or done.row is None:
                return done.outcome
            if done.row.is_prepared and self._finish_copy(done.row) is done.row:
                break
        return Outcome.CONCURRENT

    def _end(self, client: _Client, me: tuple[int, int], commit: bool) -> tuple[Outcome, int, int]:
        done = self._change(client.name, End(me, commit, client.bumps))
        if done.outcome is not Outcome.OK or done.row is None:
            return done.outcome, -1, -1
        for row in (done.retired, done.row):
            if row is not None and row.is_prepared:
                self._finish_copy(row)
        return Outcome.OK, done.row.producer_id, done.row.next_epoch

    def _check(self, client: _Client, number: int) -> str:
        row = self.copy.get(client.producer_id)
        if row is None:
            return "INVALID_PRODUCER_ID_MAPPING"
        if row.next_epoch != client.epoch:
            return "INVALID_PRODUCER_EPOCH"
        if row.is_ongoing:
            return "NONE" if (TopicId("t"), number) in row.partitions else "NEEDED"
        return "CONCURRENT_TRANSACTIONS" if row.is_prepared else "NEEDED"

    def _send(self, client: _Client, number: int) -> Outcome | str:
        add = Add((client.producer_id, client.epoch), frozenset({(TopicId("t"), number)}))
        if not client.bumps and (added := self._change(client.name, add).outcome) is not Outcome.OK:
            return added
        code: Outcome | str = self._check(client, number)
        if code == "NEEDED":
            code = self._change(client.name, add).outcome
        if code not in ("NONE", Outcome.OK):
            return code
        self._append(client.producer_id, client.epoch, number)
        return Outcome.OK
