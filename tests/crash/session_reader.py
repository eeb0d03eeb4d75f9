"""A reader of a server with fetch sessions (KIP-227), which librdkafka does not have: by hand, over all topics at once.

It seeks nowhere: each request goes on where the last response ended. Now and then it forgets partitions and takes them
in again, and now and then it begins a new session. When the server is gone it connects again, and reads on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from klamm.batch import RECORDS, decode, markers, parse
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.structs import Struct
from tests.crash.checker import COMMITTED, UNCOMMITTED
from tests.crash.history import now
from tests.crash.jepsen_workload import IN, OUT, Life
from tests.crash.wire_life import WireLife
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.requests import batches_of
from tests.kafka.session_client import SessionClient, Where

__all__ = ["session_reader"]


def session_reader(life: Life) -> None:
    """Read everything from the start, and what comes."""
    from tests.crash.wire_workload import WIRED

    assert isinstance(life, WireLife)
    dice = life.dice
    isolation = dice.choice([COMMITTED, UNCOMMITTED])
    life.record("started", role="reader", isolation=isolation)
    partitions = life.wire_partitions()
    positions = {(topic, number): 0 for topic in (IN, OUT, WIRED) for number in range(partitions)}
    while life.reads_on():
        with suppress(ConnectionEnded, OSError), Raw(life.address, life.name) as raw:
            client = SessionClient(raw, dict(positions), committed=isolation == COMMITTED)
            while life.reads_on():
                _poll(life, client, positions)
                if dice.random() < 0.05:
                    client.session_id = client.epoch = 0
        time.sleep(0.01)


def _poll(life: WireLife, client: SessionClient, positions: dict[Where, int]) -> None:
    """One request and its response, of all partitions or of some."""
    dice = life.dice
    left_out = {where for where in positions if dice.random() < 0.1}
    client.wanted = {where: offset for where, offset in positions.items() if where not in left_out}
    since = now()
    limits: dict[str, Any] = {"wait_ms": dice.choice([0, 20, 100]), "max_bytes": dice.choice([1, 2000, 1 << 20])}
    for where, told in client.poll(**limits).items():
        assert told.error_code == 0, f"{life.name}: {where}: {ErrorCode(told.error_code).name}"
        batches = batches_of(told.records)
        if not batches:
            continue
        records = [each for each in _visible(batches, told) if each[0] >= positions[where]]
        begin, positions[where] = positions[where], parse(batches[-1]).next_offset
        if records:
            life.record(
                "polled",
                since=since,
                topic=where[0],
                partition=where[1],
                begin=max(begin, records[0][0]),
                end=records[-1][0] + 1,
                records=[list(each) for each in records],
            )


def _visible(batches: list[bytes], told: Struct) -> list[tuple[int, str]]:
    """Return offset and value of the records that a client hands out: those of aborted transactions are left out."""
    aborted = sorted(((each.first_offset, each.producer_id) for each in told.aborted_transactions or ()), reverse=True)
    active: set[int] = set()
    visible = []
    for batch in batches:
        header = parse(batch)
        while aborted and aborted[-1][0] < header.next_offset:
            active.add(aborted.pop()[1])
        if header.is_control:
            if not markers.commits(batch):
                active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            visible += [(each.offset, (each.value or b"").decode()) for each in decode(batch, form=RECORDS)]
    return visible
