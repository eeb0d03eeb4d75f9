"""A store with some of everything, and visitors of its console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.spark.pipelines import checkpoint
from tests.console.visitor import Visitor

T0 = 1_790_000_000_000
FOREVER = {"retention.ms": -1}  # records of that time are old: a process of some minutes would delete them
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\x00\u202e'


def fill(opened: klamm.Store) -> None:
    """orders/0 to orders/2 with 60 records of JSON, a hostile topic, life, a group behind, six dead letters."""
    opened.topics.create("orders", partitions=3, settings=FOREVER)
    opened.topics.create("hostile", settings=FOREVER)
    for n in range(60):
        value = json.dumps({"n": n, "user": {"id": n % 7}}).encode()
        headers = {"even": "yes"} if n % 2 == 0 else None
        opened.append("orders", value, key=b"k%d" % (n % 5), partition=n % 3, headers=headers, timestamp=T0 + n, acks=1)
    value = HOSTILE.encode()
    opened.append("hostile", value, key=value, headers={HOSTILE[:40]: value}, timestamp=T0, acks=1)
    opened.groups.reset("billing", "orders", to={0: 20, 1: 15, 2: 20})
    opened.topics.create("life", settings=FOREVER)
    for key, value in (
        (b"1,2", b"0 born"),
        (b"2,2", b"0 born"),
        (b"5,0", b"0 born"),
        (b"5,0", b"1 died"),
        (b"x", b"y"),
    ):
        opened.append("life", value, key=key, timestamp=T0, acks=1)

    def fail(record: klamm.Record) -> None:
        if record.offset < 2:
            raise ValueError(f"{HOSTILE} at {record.offset}")

    with opened.consumer("orders", group="mails", wait=0) as consumer:
        consumer.run(fail, workers=1, retries=0, on_error="dead-letter")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Store]:
    """A store that is filled once, for tests that change nothing."""
    with klamm.open(tmp_path_factory.mktemp("console") / "events") as opened:
        fill(opened)
        checkpoint(opened.path, "orders", pipeline="mine")
        yield opened


@pytest.fixture(scope="session")
def looker(shared: klamm.Store) -> Visitor:
    """Of a console of that store."""
    return Visitor(shared, shared.path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    """A store of the test's own."""
    with klamm.open(tmp_path / "events") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def visitor(store: klamm.Store) -> Visitor:
    """Of a console that only reads."""
    return Visitor(store)


@pytest.fixture
def editor(store: klamm.Store) -> Visitor:
    """Of a console that may change the store."""
    return Visitor(store, allow_changes=True)
