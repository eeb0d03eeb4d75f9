"""A store with a transaction coordinator for transactional producers, and clients of both kinds, without sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import klamm
from klamm.batch import Builder
from klamm.batch.header import TRANSACTIONAL
from klamm.disk.locks import SERVER
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import NEEDS_REGISTRATION, Identified, TransactionCoordinator
from klamm.store import transaction_table
from klamm.store.directory import Core
from klamm.store.groups import OffsetRow
from klamm.store.transaction_state import Add, End
from klamm.types import PartitionKey
from tests.store.open_transactions import core_of, log_of

__all__ = ["Client", "Settings", "hasten", "hold_server", "offset_of", "offset_row", "place_of", "serving", "set_epoch"]


@dataclass(frozen=True)
class Settings:
    transaction_max_timeout_ms: int = 900_000
    max_transactional_ids: int = 100_000
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 600_000


def place_of(store: klamm.Store, number: int = 0, topic: str = "t") -> PartitionKey:
    return core_of(store).topic(topic).topic.id, number


def hold_server(core: Core, wait_s: float = 5.0) -> bool:
    """Be the server of the store, until the byte is released. Return False if there is one already."""
    members = core.members
    assert members is not None
    until = time.monotonic() + wait_s
    while not members.try_hold(SERVER):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def serving(store: klamm.Store, settings: Settings | None = None) -> Iterator[TransactionCoordinator]:
    """Be the server of a store."""
    core = core_of(store)
    assert hold_server(core)
    try:
        coordinator = TransactionCoordinator(core, settings or Settings())
        try:
            coordinator.load()
            yield coordinator
        finally:
            coordinator.close()
    finally:
        if core.members is not None:
            core.members.release(SERVER)


class Client:
    """One producer of a transactional id. `bumps`: it knows KIP-890."""

    def __init__(
        self, store: klamm.Store, coordinator: TransactionCoordinator, name: str = "billing", *, bumps: bool
    ) -> None:
        self.store, self.coordinator, self.name, self.bumps = store, coordinator, name, bumps
        self.producer_id = self.epoch = -1
        self.sequences: dict[PartitionKey, int] = {}

    def init(self, timeout_ms: int = 60_000, *, again: bool = False) -> ErrorCode:
        """`again`: it says who it was."""
        before = (self.producer_id, self.epoch) if again else (-1, -1)
        found = self.coordinator.init_producer_id(self.name, timeout_ms, *before)
        if not found.error:
            self._become(found)
        return found.error

    def _become(self, found: Identified) -> None:
        if (found.producer_id, found.epoch) != (self.producer_id, self.epoch):
            self.sequences = {}
        self.producer_id, self.epoch = found.producer_id, found.epoch

    def add(self, *numbers: int) -> ErrorCode:
        places = [place_of(self.store, number) for number in numbers]
        return self._apply(Add((self.producer_id, self.epoch), frozenset(places))).error

    def _apply(self, event: Add | End) -> Identified:
        """As the queue of a server does."""
        (found,) = self.coordinator.apply_together([(self.name, event)])
        return self.coordinator.apply(self.name, event) if found is None else found

    def send(self, *numbers: int, value: bytes = b"x") -> ErrorCode:
        """A record to each; the older kind adds the partitions first, the other lets the batch do it."""
        if not self.bumps and (error := self.add(*numbers)):
            return error
        for number in numbers:
            place = place_of(self.store, number)
            code = self.coordinator.check_produce(self.producer_id, self.epoch, place)
            if code is NEEDS_REGISTRATION:
                assert self.bumps
                code = self.add(number)
            if code is not ErrorCode.NONE:
                return ErrorCode(code)
            self.append(number, value)
        return ErrorCode.NONE

    def append(self, number: int, value: bytes = b"x") -> int:
        """Without asking."""
        place = place_of(self.store, number)
        builder = Builder(1 << 20)
        builder.add(None, value, None, time.time_ns() // 1_000_000)
        sequence = self.sequences.get(place, 0)
        batch = builder.seal(0, None, self.producer_id, self.epoch, sequence, TRANSACTIONAL)
        offset = log_of(self.store, number).append(bytearray(batch))
        self.sequences[place] = sequence + 1
        return offset

    def commit_offsets(self, group: str, offset: int, number: int = 0) -> ErrorCode:
        adding = Add((self.producer_id, self.epoch), frozenset(), frozenset({group}))
        if not self.bumps and (error := self._apply(adding).error):
            return error
        return self.coordinator.commit_offsets(
            self.name,
            self.producer_id,
            self.epoch,
            group,
            [offset_row(self.store, offset, number)],
            implicit=self.bumps,
        )

    def end(self, *, commit: bool) -> ErrorCode:
        found = self.ask_end(commit=commit)
        if not found.error and self.bumps:
            self._become(found)
        return found.error

    def ask_end(self, *, commit: bool) -> Identified:
        return self._apply(End((self.producer_id, self.epoch), commit, self.bumps))


def offset_row(store: klamm.Store, offset: int, number: int = 0) -> OffsetRow:
    return OffsetRow(*place_of(store, number), offset)


def offset_of(store: klamm.Store, group: str, number: int = 0) -> int | None:
    """Where a group stands."""
    core = core_of(store)
    found = core.groups.find(group)
    row = None if found is None else core.groups.offsets(found.number).get(place_of(store, number))
    return None if row is None else row.offset


def hasten(store: klamm.Store, coordinator: TransactionCoordinator, name: str = "billing") -> None:
    """Let its time be over."""
    database = core_of(store).catalog.database
    row = coordinator.row(name)
    assert row is not None
    with database.db_lock(), database.transaction() as execute:
        transaction_table.put(execute, row._replace(started_boot_ms=row.started_boot_ms - row.timeout_ms - 1))
    coordinator._reload()


def set_epoch(store: klamm.Store, client: Client, epoch: int) -> None:
    """Let many transactions have been."""
    database = core_of(store).catalog.database
    row = client.coordinator.row(client.name)
    assert row is not None
    with database.db_lock(), database.transaction() as execute:
        transaction_table.forget(execute, [row.key])
        transaction_table.put(execute, row._replace(epoch=epoch, next_epoch=epoch))
    client.coordinator._reload()
    client.epoch = epoch
