"""Histories of transactions: what every owner of one is answered, and which rows and markers that leaves.

A script is made of a seed alone, so a history is written down as outcomes only: for each word of the script the
answer, the rows that are not over, what the server knows of each name, where the group stands, and for each log how
many markers it has ("+": something is open there). "=" is: all as it was, but for the answer. Those in histories/ were
recorded when embedded transactions and transactions over the wire had two machines and two tables; to record others,
with a machine that is known to be right: `python -m tests.store.transaction_histories`.

    e0 e1 e2 e3    embedded producers: without a name, two of the name "a", one of the name "b"
    w0 w1 w2 w3    clients of a server: "a" (KIP-890), "b" (older), "a" (older), "c" (KIP-890)
    s0 s1          drivers of Spark with the same writer
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import klamm
from klamm.batch import Builder
from klamm.batch.header import TRANSACTIONAL
from klamm.errors import KlammError
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.spark import batches as spark_batches
from klamm.spark.batches import BatchId
from klamm.store import transaction_resolver
from klamm.store.markers import write_marker_now
from klamm.store.transaction_state import MAX_EPOCH
from klamm.store.transactions import Identity
from tests.crash.cases import memory_directory
from tests.kafka.producing import Client, offset_of, place_of, serving, set_epoch
from tests.store.open_transactions import core_of, log_of, markers, stands_open

__all__ = ["KINDS", "Driver", "history", "recorded", "script"]

KINDS = {"embedded": 100, "wire": 240, "spark": 50}
"""How many histories of each kind there are; their seeds are 0, 1, 2, ..."""
LENGTH = 30
PARTITIONS = 2
TIMEOUT_MS = 800_000  # longer than any test takes: time passes by "advance" only
NAMES = {"e0": None, "e1": "a", "e2": "a", "e3": "b", "w0": "a", "w1": "b", "w2": "a", "w3": "c"}
_EMBEDDED = [
    f"e{n} {what}" for n in range(4) for what in ("take", "add 0", "add 1", "commit", "abort", "finish", "die")
]
_ADDING = [f"e{n} {what}" for n in range(4) for what in ("add 0", "add 1", "commit", "finish")]
_ANYBODY = ["person e1", "person w0", "person w1", "advance", "resolve", "abandoned"]
_WIRE = [
    f"w{n} {what}"
    for n in range(4)
    for what in (
        *("init", "again", "send 0", "send 1", "add 0", "check 0", "offsets", "commit", "abort"),
        *("repeat commit", "repeat abort", "late", "wrong"),
    )
]
_SPARK = [
    f"s{n} {what}" for n in range(2) for what in ("look", "fill 0", "fill 1", "put", "put", "drop", "again", "other")
]


def script(kind: str, seed: int) -> list[str]:
    """The words of one history."""
    dice = random.Random(f"{kind} {seed}")
    words = {
        "embedded": _EMBEDDED * 2 + _ADDING * 3 + _ANYBODY + ["tidy"] * 3,
        "wire": _WIRE * 3
        + _EMBEDDED
        + _ANYBODY * 2
        + ["down", "up", "up", "tick", "tick", "last w0", "last w1", "block", "unblock"],
        "spark": _SPARK * 3 + _EMBEDDED[:7] + _ANYBODY,
    }[kind]
    if kind == "wire":  # few actors, so that they meet
        some = dice.sample(["w0", "w1", "w2", "w3"], 2) + dice.sample(["e1", "e3"], 1)
        words = [word for word in words if word[0] not in "ew" or word[:2] in some]
    return [dice.choice(words) for _ in range(LENGTH)]


class Driver:
    """All the actors of one history, in one process."""

    def __init__(self, store: klamm.Store) -> None:
        self.store = store
        self.core = core_of(store)
        self.identities: dict[str, Identity] = {}
        self.decided: dict[str, bool] = {}
        self.sequences: dict[tuple[int, int, int], int] = {}
        self.clients: dict[str, Client] = {}
        self.number = 0
        self.is_blocked = False
        self.server = ExitStack()
        self.coordinator: TransactionCoordinator | None = None

    def act(self, word: str) -> str:
        actor, *rest = word.split()
        try:
            if actor[0] == "w" and actor[1:].isdigit():
                answer = self._client(actor, *rest) if self.coordinator is not None else "-"
            elif actor[0] == "s" and actor[1:].isdigit():
                answer = self._spark(actor, *rest)
            elif actor[0] == "e" and actor[1:].isdigit():
                answer = self._embedded(actor, *rest)
            else:
                answer = self._anybody(actor, *rest)
        except KlammError as error:
            answer = type(error).__name__
        return str(answer)

    # ---- embedded

    def _embedded(self, actor: str, what: str, partition: str = "0") -> object:
        all_of, mine = self.core.transactions, self.identities.get(actor)
        if what == "take":
            self.identities[actor] = all_of.identity(NAMES.get(actor))
            if mine is not None:
                all_of.let_go(mine)
            self.decided.pop(actor, None)
            return self.identities[actor].producer_id
        if mine is None and what == "add":
            mine = self.identities[actor] = all_of.identity(NAMES.get(actor))
        if mine is None:
            return "-"
        if what == "add":
            if not mine.partitions:
                self.decided.pop(actor, None)
            opened = self.core.topic("t")
            number = int(partition)
            all_of.register(mine, {(opened.topic.id, number): opened.partition(number)}, TIMEOUT_MS)
            return self._append(mine, number)
        if what in ("commit", "abort"):
            decided = all_of.decide(mine, commit=what == "commit")
            if decided is not None:
                self.decided[actor] = decided
            return decided
        if what == "finish":
            if actor not in self.decided:
                return "-"
            all_of.finish(mine, commit=self.decided.pop(actor))
            return mine.epoch
        assert what == "die"
        all_of.let_go(self.identities.pop(actor))
        return "ok"

    def _append(self, mine: Identity, number: int) -> object:
        key = mine.producer_id, mine.epoch, number
        builder = Builder(1 << 20)
        builder.add(None, b"x", None, time.time_ns() // 1_000_000)
        sealed = builder.seal(0, None, mine.producer_id, mine.epoch, self.sequences.get(key, 0), TRANSACTIONAL)
        log_of(self.store, number).append(bytearray(sealed))
        self.sequences[key] = self.sequences.get(key, 0) + 1
        return "ok"

    # ---- over the wire

    def _client(self, actor: str, what: str, argument: str = "") -> object:
        coordinator = self.coordinator
        assert coordinator is not None
        client = self.clients.get(actor)
        if client is None:
            client = Client(self.store, coordinator, NAMES[actor] or "", bumps=actor in ("w0", "w3"))
            self.clients[actor] = client
            return f"{client.init(TIMEOUT_MS).name} {client.producer_id}.{client.epoch}"
        client.coordinator = coordinator
        if what in ("init", "again"):
            code = client.init(TIMEOUT_MS, again=what == "again")
        elif what == "send":
            code = client.send(int(argument))
        elif what == "add":
            code = client.add(int(argument))
        elif what == "check":
            return coordinator.check_produce(client.producer_id, client.epoch, place_of(self.store, int(argument))).name
        elif what == "offsets":
            self.number += 1
            code = client.commit_offsets("g", self.number)
        elif what in ("commit", "abort"):
            code = client.end(commit=what == "commit")
        elif what == "repeat":
            found = client.ask_end(commit=argument == "commit")
            return f"{found.error.name} {found.producer_id}.{found.epoch}"
        elif what == "late":
            found = coordinator.end(client.name, client.producer_id, client.epoch - 1, commit=True, bump=client.bumps)
            return f"{found.error.name} {found.producer_id}.{found.epoch}"
        else:
            assert what == "wrong"
            found = coordinator.end(client.name, client.producer_id + 7, client.epoch, commit=True, bump=client.bumps)
            return f"{found.error.name} {found.producer_id}.{found.epoch}"
        return f"{code.name} {client.producer_id}.{client.epoch}"

    # ---- Spark

    def _spark(self, actor: str, what: str, partition: str = "0") -> object:
        all_of, mine = self.core.transactions, self.identities.get(actor)
        batch = BatchId("query q", "topic t", self.number // 4, f"offsets {self.number // 5}")
        if what == "other":
            batch = batch._replace(plan=f"records {self.number}/1")
        if what == "again":
            batch = batch._replace(number=max(0, batch.number - 1))
        self.number += 1
        if what in ("look", "again", "other"):
            return spark_batches.is_committed(self.core.catalog.database, batch)
        if mine is None:
            mine = self.identities[actor] = all_of.identity()
        if what == "fill":
            return self._embedded(actor, "add", partition)
        if what == "drop":
            all_of.let_go(self.identities.pop(actor))
            return "ok"
        try:
            decided = all_of.decide(mine, commit=True, also=partial(spark_batches.put, batch=batch))
        except KlammError as error:
            if mine.partitions:
                decided = all_of.decide(mine, commit=False)
                if decided is not None:
                    all_of.finish(mine, commit=decided)
                    return f"{type(error).__name__} {decided}"
            all_of.let_go(self.identities.pop(actor))
            return type(error).__name__
        assert decided is not None
        all_of.finish(mine, commit=decided)
        return f"{decided} {mine.epoch}"

    # ---- everybody

    def _anybody(self, what: str, actor: str = "") -> object:
        all_of = self.core.transactions
        if what == "person":
            owner = self.identities.get(actor) or self.clients.get(actor)
            return "-" if owner is None else self.store.transactions.abort(owner.producer_id)
        if what == "advance":
            self.core.heads.advance(TIMEOUT_MS + 1_000)
        elif what in ("resolve", "abandoned"):
            logs = [log_of(self.store, number) for number in range(PARTITIONS)]
            all_of.resolve(logs, only_abandoned=what == "abandoned")
        elif what == "tidy":
            all_of.tidy()
        elif what == "down":
            self.server.close()
            self.coordinator = None
        elif what in ("block", "unblock"):  # whether a stopped process is appending to every log
            self.is_blocked = what == "block"
        elif what == "up" and self.coordinator is None:
            self.coordinator = self.server.enter_context(serving(self.store))
        elif what == "tick" and self.coordinator is not None:
            self.coordinator.tick()
        elif what == "last" and self.coordinator is not None:  # the client is in its last epoch
            self.coordinator.tick()
            client = self.clients.get(actor)
            row = None if client is None else self.coordinator.row(client.name)
            is_idle = client is not None and row is not None and row.is_over
            if client is None or not is_idle or row is None or row.producer_id != client.producer_id:
                return "-"
            set_epoch(self.store, client, MAX_EPOCH)
        return "ok"

    def _is_over(self, producer_id: int) -> bool:
        """Whether the server knows that it is, which it writes with the next one."""
        return self.coordinator is not None and producer_id in self.coordinator._marked

    def state(self) -> str:
        letters = {"ongoing": "o", "prepared_commit": "C", "prepared_abort": "A"}
        rows = " ".join(
            f"{info.producer_id}.{info.epoch}{letters[info.state]}"
            + "".join(str(number) for _, number in info.partitions)
            for info in self.store.transactions
            if not self._is_over(info.producer_id)
        )
        names = ""
        if self.coordinator is not None:
            known = sorted(self.coordinator.rows(), key=lambda row: row.name or "")  # which come in any order
            names = " ".join(f"{row.name}={row.producer_id}.{row.next_epoch}{_short(row.state)}" for row in known)
        logs = [log_of(self.store, number) for number in range(PARTITIONS)]
        ends = " ".join(f"{len(markers(log))}{'+' if stands_open(log) else ''}" for log in logs)
        return f"{rows}|{names}|{offset_of(self.store, 'g') or ''}|{ends}"


def _short(state: str) -> str:
    return "".join(word[0] for word in state.split("_"))


def history(path: Path, words: list[str], kind: str) -> Iterator[str]:
    """Act a script out in a new store; an outcome for each word."""
    with klamm.open(path) as store:
        store.topics.create("t", PARTITIONS)
        driver = Driver(store)
        with driver.server, pytest.MonkeyPatch.context() as patch:
            patch.setattr(transaction_resolver, "can_append", lambda *_: not driver.is_blocked)
            patch.setattr(
                transaction_resolver, "write_marker_now", lambda *_: None if driver.is_blocked else write_marker_now(*_)
            )
            if kind == "wire":
                driver.act("up")
            before = ""
            for word in words:
                answer, state = driver.act(word), driver.state()
                yield f"{answer}|{'=' if state == before else state}"
                before = state
        assert store.check().breaches == []


def _file_of(kind: str) -> Path:
    return Path(__file__).parent / "histories" / f"{kind}.txt"


def recorded(kind: str) -> list[list[str]]:
    """The outcomes of each history of a kind, by seed."""
    text = _file_of(kind).read_text(encoding="utf-8")
    return [block.splitlines() for block in text.split("\n\n") if block]


def _record() -> None:
    for kind, count in KINDS.items():
        with memory_directory(Path.cwd()) as directory:
            blocks = ["\n".join(history(directory / f"{seed}", script(kind, seed), kind)) for seed in range(count)]
        _file_of(kind).write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _record()
