"""Pipelines whose store is behind a server: the same results, folders and promises as in its directory."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, StoreError, TopicExists, UnknownTopic, Unreachable, Unsupported
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.spark.pipelines import (
    aggregate,
    archive,
    checkpoint,
    compact,
    list_pipelines,
    quality,
    restore,
)
from klamm.spark.pipelines.journal import Journal
from klamm.spark.pipelines.query_runner import source
from klamm.spark.pipelines.store_location import StoreLocation
from klamm.spark.pipelines.streams import make_topics, max_bytes
from klamm.spark.server import client
from klamm.store.acl import Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.directory import Core
from klamm.store.users import Users
from tests.crash.cases import seed_of
from tests.kafka.connect import served
from tests.procs import until
from tests.serving import free_port, restartable
from tests.spark.pipelines.reference import NO_RETENTION, START_MS, Event, contents, order
from tests.spark.pipelines.test_archive import archived, topic_rows
from tests.spark.pipelines.test_without_spark import rows_of
from tests.spark.processes import driver, wait_for

pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(300)
HERE_DRIVER = Path(__file__).parent / "here_driver.py"
MINUTE = 60_000


@pytest.fixture
def address(store: klamm.Store) -> Iterator[str]:
    with klamm.server(store) as found:
        yield found


# ---- from topic to topic


def test_a_pipeline_goes_on_at_the_other_address(spark: Any, store: klamm.Store, address: str, tmp_path: Path) -> None:
    """Also its table, its dead letters and its late records."""
    store.topics.create("orders", 3, NO_RETENTION)
    broken = Event(START_MS, None, b"{")
    batches = [
        [order(START_MS, 0), order(START_MS + 10 * MINUTE, 1)],
        [order(START_MS + 1, 2), order(START_MS + 10 * MINUTE, 3), broken],  # the first is late by now
    ]
    windows: Any = {"window": "1 minute", "watermark": "1 minute", "by": "$.user.id", "table": True}
    reports: list[Any] = []
    for where, events in zip((store.path, f"kafka://{address}/"), batches, strict=True):
        for each in events:
            store.append("orders", each.value, timestamp=each.at, partition=0)
        most = 1 if reports else None
        reports.append(
            aggregate(spark, where, "orders", "minutes", **windows, checkpoint=tmp_path / "mine", max_offsets=most)
        )
    counts = {each.key: json.loads(each.value)["count"] for each in contents(store, "minutes")}
    assert sorted(counts.values()) == [1, 2], counts
    assert [(each.rows_read, each.dead_letters, each.late) for each in reports] == [(2, 0, 0), (3, 1, 1)]
    assert [each.reason for each in store.dead_letters("orders.dlq")] == ["has no $.user.id"]
    other: Any = {"dead_letters": "letters", "checkpoint": tmp_path / "other"}
    with pytest.raises(InvalidSetting, match=r"the topic orders\.dlq is not compacted, so it is not a table"):
        aggregate(spark, f"klamm://{address}", "orders", "orders.dlq", **windows, **other)


def test_topics_are_made_at_a_server_as_in_a_directory(store: klamm.Store, address: str) -> None:
    store.topics.create("orders", 3, {"max.message.bytes": 100_000})
    for where in (f"klamm://{address}", store.path):
        name = "there" if where == store.path else "here"
        read = source(where, "orders")
        for _ in range(2):  # what is there stays as it is
            settings = {"max.message.bytes": max_bytes(read, "orders")}
            make_topics(read, name, settings, {"orders": f"{name}.dlq"}, compacted=True)
    for suffix in ("", ".dlq"):
        here, there = (store.topics.describe(name + suffix) for name in ("here", "there"))
        assert (len(here.partitions), here.settings) == (len(there.partitions), there.settings)
    assert store.topics.describe("here").settings["max.message.bytes"] == "100000"


# ---- archives


def test_an_archive_goes_on_at_the_other_address_and_without_spark(
    spark: Any, store: klamm.Store, address: str, tmp_path: Path
) -> None:
    store.topics.create("orders", 2, {**NO_RETENTION, "segment.ms": 7_200_000})
    engines: list[str] = []
    for where, session in (
        (f"kafka://{address}", None),
        (f"klamm://{address}", spark),
        (store.path, spark),
        (f"klamm://{address}", None),
    ):
        with store.transaction() as transaction:
            for n in range(20):
                transaction.send("orders", b"%d" % n, key=b"%d" % len(engines), partition=n % 2)
        aborted = store.transaction(batch_bytes=1)
        aborted.send("orders", b"aborted", partition=0)
        aborted.abort()
        report = archive(session, where, "orders", tmp_path / "out", max_offsets=30 if session is None else 15)
        engines.append(report.details["engine"])
        assert report.rows_written == 20
    assert engines == ["local", "spark", "spark", "local"]
    assert rows_of(tmp_path / "out") == topic_rows(store, "orders")
    restore(spark, tmp_path / "out", store.path, "again")
    assert topic_rows(store, "again") == topic_rows(store, "orders")
    assert store.topics.describe("again").settings["segment.ms"] == "7200000"
    found = quality(None, f"klamm://{address}", "orders")
    assert (found.records, found.store) == (80, f"klamm://{address}")


def test_dead_letters_of_an_archive_are_written_once_at_a_server(
    spark: Any, store: klamm.Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("orders", 1)
    store.append_many("orders", [b'{"id": %d}' % n if n % 4 else b"bad" for n in range(12)])
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _fail)
        with pytest.raises(Exception, match="as good as a kill"):
            archive(spark, f"klamm://{address}", "orders", tmp_path / "out", schema="id INT")
    assert len(contents(store, "orders.dlq")) == 3
    report = archive(spark, f"klamm://{address}", "orders", tmp_path / "out")
    assert (report.rows_written, report.dead_letters) == (9, 3)
    assert len(contents(store, "orders.dlq")) == 3
    assert len(archived(spark, tmp_path / "out")) == 9


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError("as good as a kill")


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_an_archive_whose_process_and_server_are_killed_has_every_record_once(
    path: Path, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    out, journal = tmp_path / "out", tmp_path / "out" / "_klamm" / "journal.json"

    def done() -> int:
        return int(json.loads(journal.read_text())["batch"]) if journal.exists() else -1

    with klamm.open(path) as store, restartable(path) as server:
        store.topics.create("orders", 2)
        for _ in range(kills):
            store.append_many("orders", [(b"%d" % (n % 9), b"%d" % n) for n in range(3000)])
            before = done()
            with driver(HERE_DRIVER, f"kafka://{server.address}", "orders", out, 5) as process:
                wait_for(lambda least=before + 2: done() >= least, process)  # type: ignore[misc]
                server.kill()
                server.begin()
                took = wait_for(lambda least=before + 8: done() >= least, process)  # type: ignore[misc]
                with pytest.raises(subprocess.TimeoutExpired):  # anywhere in the next micro-batches
                    process.wait(dice.random() * took / 4)
        archive(None, f"klamm://{server.address}", "orders", out)
        assert rows_of(out) == topic_rows(store, "orders")


# ---- what is refused, and what nobody is told


def test_what_a_server_cannot_do_is_refused_before_anything_is_done(
    store: klamm.Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("orders", 1)
    where, spark = f"klamm://{address}", None
    windows: Any = {"window": "1m", "watermark": "1m"}
    for option, call in {
        "checkpoint": lambda: aggregate(spark, where, "orders", "out", **windows),  # type: ignore[arg-type]
        "directory": lambda: checkpoint(where, "orders", pipeline="mine"),
    }.items():
        with pytest.raises(InvalidSetting, match=f"{option}: is missing: a store behind an address has no folder"):
            call()
    with pytest.raises(Unsupported, match="restore: the offsets of records can only be chosen in a directory"):
        restore(spark, tmp_path, f"kafka://{address}", "orders")  # type: ignore[arg-type]
    for in_directory in (lambda: compact(spark, where, "orders"), lambda: list_pipelines(where)):  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting, match="is not a folder of this machine"):
            in_directory()
    with pytest.raises(UnknownTopic, match=r"Topic 'ordres' does not exist .*'orders'"):
        archive(None, where, "ordres", tmp_path / "out")
    with pytest.raises(InvalidSetting, match=r"no option 'sasl\.user'"):
        archive(None, f"{where}?sasl.user=anna", "orders", tmp_path / "out")
    monkeypatch.setattr(client, "RETRY_TIMEOUT_S", 0.1)
    with pytest.raises(Unreachable, match="Connection refused"):
        archive(None, f"klamm://127.0.0.1:{free_port()}", "orders", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [Path(store.path)] and list(store.topics) == ["orders"]
    mine = checkpoint(f"kafka://{address}", "orders", pipeline="mine", directory=tmp_path / "mine")
    assert list_pipelines(store.path) == []
    assert mine == checkpoint(store.path, "orders", pipeline="mine", directory=tmp_path / "mine")
    assert [each.pipeline for each in list_pipelines(store.path)] == ["mine"]


def test_a_login_stands_behind_the_address_and_in_no_file(store: klamm.Store, tmp_path: Path) -> None:
    """And a user needs the rights that docs/guide/spark-on-a-cluster.md names."""
    store.topics.create("orders", 1)
    store.append_many("orders", [b"1", b"2"])
    catalog = store._acquired().catalog
    Users(catalog).add("anna", "se&cret")

    def allow(name: str, *operations: Operation) -> None:
        rule = (ResourceType.TOPIC, name, PatternType.LITERAL, "User:anna", "*")
        Acls(catalog).add([Acl(*rule, operation, Permission.ALLOW) for operation in operations])

    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": "PLAIN",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "connection_failed_authentication_delay_ms": 0,
    }
    options = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=anna&sasl.password="
    allow("orders", Operation.READ, Operation.DESCRIBE)
    with served(Path(store.path), **settings) as server:
        where = f"klamm://{server.address}?{options}se%26cret"
        with pytest.raises(StoreError, match="the login failed") as failed:
            archive(None, where.replace("se%26cret", "guess"), "orders", tmp_path / "out")
        with pytest.raises(StoreError, match=r"orders: the user may not read the topic.s settings .*DescribeConfigs"):
            archive(None, where, "orders", tmp_path / "out")
        location = StoreLocation.of(where)
        with location.opened() as core:
            with pytest.raises(StoreError, match="TOPIC_AUTHORIZATION_FAILED"):
                core.catalog.create_topic("made", 2, {}, core.lay_out)
            allow("made", Operation.CREATE, Operation.DESCRIBE)
            allow("orders", Operation.DESCRIBE_CONFIGS)
            until(lambda: _is_created(core, "made"), "the right is known")
            with pytest.raises(TopicExists, match="topic 'made' already exists"):
                core.catalog.create_topic("made", 2, {}, core.lay_out)
        made = store.topics.describe("made")
        assert (len(made.partitions), made.settings["retention.ms"]) == (2, "-1")
        assert archive(None, where, "orders", tmp_path / "out").rows_written == 2
    shown = [str(failed.value), repr(location), location.path]
    shown += [each.read_text(errors="replace") for each in (tmp_path / "out" / "_klamm").rglob("*") if each.is_file()]
    assert len(shown) > 8 and not any(secret in text for text in shown for secret in ("cret", "guess"))


def _is_created(core: Core, name: str) -> bool:
    try:
        core.catalog.create_topic(name, 2, {"retention.ms": -1}, core.lay_out)
    except StoreError:
        return False
    return True
