"""`store["orders"]` and the collections of a store; what tab completion and annotations see of them."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import inspect
import pickle
import re
import rlcompleter
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio, typevars
from tests.procs import children

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text()


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    store.topics.create("users")
    return store


# The store as a collection of topics


def test_a_store_has_its_topics_by_name(store: klamm.Store) -> None:
    assert "orders" in store and "nothing" not in store and "" not in store
    assert list(store) == list(store.topics) == ["orders", "users"]
    assert len(store) == len(store.topics) == 2
    assert "orders" in store.topics and 5 not in store.topics
    store.topics.delete("users")
    assert "users" not in store and list(store) == ["orders"]


@pytest.mark.parametrize("listed", [lambda store: store, lambda store: store.topics], ids=["store", "topics"])
def test_a_list_of_the_topics_reads_the_catalog_once(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, listed: Callable[[klamm.Store], Any]
) -> None:
    catalog = store._acquired().catalog
    reads: list[int] = []
    read = catalog._read_topics
    monkeypatch.setattr(catalog, "_read_topics", lambda: (reads.append(1), read())[1])
    store.topics.create("more")
    assert list(listed(store)) == ["more", "orders", "users"] and len(reads) == 1
    with klamm.open(store.path) as other:
        other.topics.delete("users")
    assert list(listed(store)) == ["more", "orders"] and len(reads) == 2


def test_a_store_without_topics_is_true(path: Path) -> None:
    with klamm.open(path) as store:
        assert store and len(store) == 0
        assert not store.topics and not store.groups and not store.transactions


def test_a_handle_on_a_topic_that_is_not_there_is_refused_with_the_nearest_name(store: klamm.Store) -> None:
    with pytest.raises(klamm.UnknownTopic, match="ordres") as caught:
        store["ordres"]
    assert "orders" in str(caught.value.hint)
    with pytest.raises(TypeError, match="str"):
        store[0]  # type: ignore[index]


def test_names_are_read_when_iteration_begins(store: klamm.Store) -> None:
    for name in store:
        store.topics.create(f"{name}-copy")
    assert list(store) == ["orders", "orders-copy", "users", "users-copy"]


# One topic


def test_a_handle_appends_and_reads_as_the_store_does(store: klamm.Store) -> None:
    users = store["users"]
    assert users.append(b"a", acks=1) == 0  # opens the topic
    assert users.append(b"b", key=b"k", acks=1) == 1  # the fast path
    assert users.append(b"c", headers=[("h", b"1")], timestamp=1000, partition=0) == 2
    assert users.append(b"d", acks=0) is None
    assert users.append_many([(None, b"e"), (b"k", b"f")]).count == 2
    with users.consumer(wait=0) as consumer:
        records = list(consumer)
    assert [record.value for record in records] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert records[1].key == b"k" and records[2].timestamp == 1000 and dict(records[2].headers) == {"h": b"1"}
    assert users.info().count == 6 and len(list(users.tail(2))) == 2
    assert users.scan(columns=["value"]).to_table().num_rows == 6
    assert users.append_table(users.scan(partitions=0, start={0: 4}, columns=["value"])).count == 2
    with users.table() as table:
        assert table[b"k"] == b"f"
    assert users.offset_at(0, 1000) == 0


def test_the_fast_path_of_a_handle_is_left_when_something_is_in_the_way(store: klamm.Store) -> None:
    users, orders = store["users"], store["orders"]
    for _ in range(3):
        users.append(b"x", acks=1)
    users.alter(segment_bytes=300)  # the catalog has another version
    assert [users.append(b"x" * 100, acks=1) for _ in range(10)] == list(range(3, 13))
    assert len(store._acquired().topic("users").partition(0).segments()) > 1, "the segment was full"
    users.alter({"cleanup.policy": "compact"})
    with pytest.raises(klamm.InvalidRecord, match="key"):
        users.append(b"x", acks=1)
    assert [orders.append(b"x", acks=1) for _ in range(4)] == [0, 0, 1, 1], "partitions take turns"
    with pytest.raises(klamm.RecordTooLarge):
        orders.append(b"x" * (2 << 20), acks=1)


def test_a_handle_is_about_the_topic_that_has_the_name_now(store: klamm.Store) -> None:
    users = store["users"]
    users.append(b"old", acks=1)
    users.delete()
    for use in (lambda: users.append(b"x", acks=1), users.info, users.settings, users.delete, users.consumer):
        with pytest.raises(klamm.UnknownTopic, match="users"):
            use()
    store.topics.create("users", 3)
    assert users.append(b"new", partition=2, acks=1) == 0
    assert len(users.info().partitions) == 3


def test_a_handle_changes_its_topic(store: klamm.Store) -> None:
    orders = store["orders"]
    assert orders.settings()["retention.ms"] == "604800000"
    assert orders.alter({"retention.ms": -1}, segment_bytes=4096).settings == {
        "retention.ms": "-1",
        "segment.bytes": "4096",
    }
    assert orders.alter(reset="segment.bytes").settings == {"retention.ms": "-1"}
    assert len(orders.add_partitions(3).partitions) == 3
    orders.append_many([b"x"] * 10, partition=1)
    assert orders.delete_records({1: 4}) == {1: 4}
    assert orders.info().partitions[1].start == 4 and orders.info() == store.topics.describe("orders")
    assert orders.cuts() == []
    with pytest.raises(klamm.InvalidSetting, match="compact"):
        orders.compact()
    orders.alter({"cleanup.policy": "compact"})
    orders.append_many([(b"k", b"%d" % n) for n in range(100)], partition=2)
    assert orders.compact(force=True).records_removed >= 98


def test_handles_are_equal_if_store_and_name_are(store: klamm.Store, tmp_path: Path) -> None:
    orders = store["orders"]
    assert orders == store["orders"] and hash(orders) == hash(store["orders"]) and orders.store is store
    assert orders != store["users"] and orders != "orders"
    assert "orders" in repr(orders) and store.path in repr(orders)
    with klamm.open(tmp_path / "other") as other:
        assert other.topics.create("orders") != orders
    with klamm.open(store.path) as again:
        assert again["orders"] == orders


def test_a_notebook_shows_tables(path: Path) -> None:
    store = klamm.open(path)
    orders = store.topics.create("orders")
    orders.append(b"x")
    row = f'<td style="text-align: right">{orders.info().size}</td>'
    for shown, title in ((store, "&lt;Store"), (store.topics, "&lt;Topics"), (orders, "topic orders")):
        assert title in shown._repr_html_() and row in shown._repr_html_()
    store.close()
    assert ", closed" in store._repr_html_() and row not in store._repr_html_()


def test_a_handle_can_be_pickled(store: klamm.Store) -> None:
    orders = pickle.loads(pickle.dumps(store["orders"]))
    assert orders == store["orders"] and orders.store is not store
    assert orders.append(b"x", partition=0) == 0
    orders.store.close()


def test_a_handle_works_on_in_a_forked_child(store: klamm.Store) -> None:
    users = store["users"]
    users.append(b"parent", acks=1)

    def in_child() -> list[object]:
        return [users.append(b"child", acks=1), users.name in store, len(store.topics), list(store.groups)]

    with children() as start:
        assert start(in_child).answer() == [1, True, 2, []]
    assert users.append(b"parent", acks=1) == 2


def test_handles_and_collections_keep_their_store_open_and_only_as_long_as_they_live(path: Path) -> None:
    klamm.open(path).topics.create("orders").append(b"x")
    orders = klamm.open(path)["orders"]
    topics, groups = klamm.open(path).topics, klamm.open(path).groups
    assert orders.append(b"y") == 1 and list(topics) == ["orders"] and not list(groups)
    gc.disable()
    try:
        gone = weakref.ref(orders.store)
        del orders
        assert gone() is None, "without the garbage collector: there is no cycle"
    finally:
        gc.enable()


# Topics


def test_settings_are_a_mapping_or_keywords(store: klamm.Store) -> None:
    made = store.topics.create("a", 1, {"retention.ms": 1000}, segment_bytes=4096, cleanup_policy="compact")
    assert made.info().settings == {"cleanup.policy": "compact", "retention.ms": "1000", "segment.bytes": "4096"}
    assert store.topics.alter("a", retention_ms=-1, reset=["segment.bytes"]).settings["retention.ms"] == "-1"
    with pytest.raises(klamm.InvalidSetting, match=r"retention\.ms: given twice"):
        store.topics.alter("a", {"retention.ms": 1}, retention_ms=2)
    with pytest.raises(klamm.InvalidSetting, match=r"retention\.m:") as caught:
        store.topics.create("b", retention_m=5)
    assert "retention.ms" in str(caught.value.hint) and "b" not in store
    version = store._acquired().heads.catalog_version
    assert store.alter(lineage_retention_ms=1000)["lineage.retention.ms"] == "1000"
    assert store._acquired().heads.catalog_version != version, "other processes are told"


def test_create_returns_a_handle_and_leaves_a_topic_that_is_there(store: klamm.Store) -> None:
    orders = store.topics.create("orders", 7, exist_ok=True, retention_ms=5)
    assert orders == store["orders"] and len(orders.info().partitions) == 2 and orders.info().settings == {}
    with pytest.raises(klamm.TopicExists):
        store.topics.create("orders")


def test_a_store_opened_for_reading_shows_and_refuses(store: klamm.Store) -> None:
    store.append("users", b"x")
    with klamm.open(store.path, read_only=True) as reading:
        users = reading["users"]
        assert users.info().count == 1 and [record.value for record in users.tail()] == [b"x"]
        writes: list[Callable[[], object]] = [
            lambda: users.append(b"x", acks=1),
            lambda: users.append(b"x"),
            users.delete,
            lambda: users.alter(retention_ms=1),
            lambda: users.add_partitions(2),
            lambda: users.compact(force=True),
            lambda: reading.topics.create("new"),
        ]
        for write in writes:
            with pytest.raises(klamm.ReadOnly):
                write()


# Groups and transactions


def test_groups_are_a_collection_of_names(store: klamm.Store) -> None:
    store.append_many("users", [b"x"] * 10)
    assert "billing" not in store.groups and len(store.groups) == 0
    with store["users"].consumer(group="billing", wait=0) as users:
        users.poll(4)
        users.commit()
        with pytest.raises(klamm.GroupBusy):
            store.groups.reset("billing", to="earliest")
    assert list(store.groups) == ["billing"] and "billing" in store.groups and 7 not in store.groups
    assert store.groups.reset("billing", to="latest") == [klamm.OffsetMove("billing", "users", 0, 4, 10, 0)]
    assert store.groups.describe("billing").lag == 0
    (move,) = plan = store.groups.plan_reset("billing", by=-3)
    assert move.after == 7 and store.groups.describe("billing").lag == 0
    store.groups.apply(plan)
    assert store.groups.describe("billing").lag == 3
    with pytest.raises(klamm.GroupBusy, match="moved"):
        store.groups.apply(plan)
    store.groups.import_(store.groups.export("billing"), "copied")
    store.groups.delete("billing")
    assert list(store.groups) == ["copied"] and store.groups.describe("copied").lag == 3


def test_transactions_are_a_collection_of_infos(store: klamm.Store) -> None:
    tx = store.transaction("billing", batch_bytes=1)
    tx.send("users", b"x")
    (info,) = store.transactions
    assert len(store.transactions) == 1 and info.name == "billing" and info.partitions == (("users", 0),)
    assert store.transactions.abort(info.producer_id) and not store.transactions.abort(info.producer_id)
    with pytest.raises(klamm.Aborted):
        tx.commit()
    assert len(store.transactions) == 0


# asyncio


def test_handles_and_collections_of_asyncio(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path) as store:
            orders = await store.topics.create("orders", 2, retention_ms=-1)
            assert await orders.append(b"x", partition=0) == 0 and "orders" in repr(orders)
            assert (await orders.append_many([b"y"] * 3, partition=1)).count == 3
            async with orders.consumer(wait=0, group="g") as consumer:
                assert len([record async for record in consumer]) == 4
                await consumer.commit()
            assert len([record async for record in orders.tail(2)]) == 2
            assert (await orders.info()).count == 4 and (await orders.settings())["retention.ms"] == "-1"
            await orders.alter(reset=["retention.ms"])
            assert await orders.delete_records({1: 2}) == {1: 2} and await orders.cuts() == []
            assert await orders.offset_at(1, 0) == 2 and len((await orders.add_partitions(3)).partitions) == 3
            assert [name async for name in store.groups] == ["g"]
            assert [info async for info in store.transactions] == []
            assert len(await store.groups.plan_reset("g", to="earliest")) == 2
            await orders.delete()
            with pytest.raises(klamm.UnknownTopic):
                await store["orders"].info()
            assert [name async for name in store.topics] == []

    asyncio.run(asyncio.wait_for(work(), 60))


# What an editor and a prompt show

OURS = {name for code in re.findall(r"`([^`\n]+)`", PAGE) for name in re.findall(r"(?:^|\.)(\w+)", code)}


def public_objects(store: klamm.Store) -> list[Any]:
    users = store["users"]
    users.append_many([(b"k", b"v")] * 3)
    consumer, producer, tx = users.consumer(group="g", wait=0), store.producer(), store.transaction()
    batch = consumer.poll()
    return [
        *(store, users, store.topics, store.groups, store.transactions),
        *(consumer, batch, batch[0], producer, producer.send("users", b"x"), tx, users.table(), users.scan()),
        *(store.pipe("users", print, state="state"), klamm.to("users", b"x")),
        *(users.info(), users.info().partitions[0], store.check(), store.backup(store.path + "-copy")),
        *(store.groups.describe("g"), store.groups.describe("g").members[0], store.groups.describe("g").offsets[0]),
    ]


def test_tab_completion_shows_nothing_that_is_not_on_the_page(store: klamm.Store) -> None:
    for thing in public_objects(store):
        inherited = {name for base in (list, tuple, dict) for name in dir(base)}
        shown = {name for name in dir(thing) if not name.startswith("_")}
        assert shown - inherited <= OURS, type(thing).__name__
        completer = rlcompleter.Completer({"thing": thing})
        completed = {match[6:].rstrip("()") for n in range(200) if (match := completer.complete("thing.", n))}
        assert completed == shown, type(thing).__name__


@pytest.mark.parametrize("package", [klamm, aio])
def test_a_public_class_shows_nothing_that_is_not_on_the_page(package: Any) -> None:
    inherited = {name for base in (list, tuple, dict) for name in dir(base)}
    classes = [thing for name in package.__all__ if inspect.isclass(thing := getattr(package, name))]
    assert len(classes) > 8
    shown = [(each, name) for each in classes if not issubclass(each, Exception) for name in dir(each)]
    assert [each for each in shown if each[1] not in OURS | inherited and not each[1].startswith("_")] == []


@pytest.mark.parametrize("name", ["klamm", "klamm.aio", "klamm.testing", "klamm.spark", "klamm.spark.pipelines"])
def test_a_package_shows_its_public_names_and_no_others(name: str) -> None:
    if name.startswith("klamm.spark"):
        pytest.importorskip("pyspark")
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in dir(package))


@pytest.mark.parametrize(
    ("made", "by"),
    [
        (klamm.Consumer, "store.consumer("),
        (klamm.Producer, "store.producer("),
        (klamm.Transaction, "store.transaction("),
        (klamm.Table, "store.table("),
        (klamm.Scan, "store.scan("),
        (klamm.Pipe, "store.pipe("),
    ],
)
def test_a_class_that_a_store_makes_says_so_when_it_is_called(store: klamm.Store, made: Any, by: str) -> None:
    for arguments in ((), (store,), (store, "orders"), ("orders",), (None,)):
        with pytest.raises(TypeError, match=re.escape(f"{made.__name__}: not made by calling the class; use {by}")):
            made(*arguments)
    with pytest.raises(TypeError, match=re.escape(by)):
        made("orders", group="g", topic="t")


PLAIN = {  # named in annotations, and plain unions or dictionaries that a program writes out
    "AppendManyOptions": "keywords of store.append_many",
    "AppendOptions": "keywords of store.append",
    "ConsumerOptions": "keywords of store.consumer",
    "ProducerOptions": "keywords of store.producer",
    "TopicConsumerOptions": "keywords of topic.consumer",
    "TransactionOptions": "keywords of store.transaction",
    **dict.fromkeys(["K", "V", "T", *typevars.__all__], "a type variable"),
    **dict.fromkeys(["Appends", "Reads", "TopicReads"], "a part of a class that is exported"),
    "Value": "a number, a string or a bool",
    "What": "a Batch, a Record, a mapping or None",
}


@pytest.mark.parametrize(
    "name",
    [
        "Store",
        "Topic",
        "Topics",
        "Groups",
        "Transactions",
        "Consumer",
        "Producer",
        "Transaction",
        "Table",
        "Scan",
        "Pipe",
        "SqlResult",
    ],
)
def test_everything_in_the_annotations_of_a_public_class_can_be_imported_from_klamm(name: str) -> None:
    classes = [each for each in getattr(klamm, name).__mro__ if each.__module__.startswith("klamm.")]
    named, imported = set(), set()
    for made in classes:
        if made.__module__ in ("klamm.batch._kernel", "klamm.log._head"):
            continue  # its stub is read by checkers only
        module = ast.parse(Path(inspect.getfile(made)).read_text())
        imported |= {
            alias.asname or alias.name
            for node in ast.walk(module)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("klamm")
            for alias in node.names
        }
        (body,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == made.__name__]
        named |= {
            part.id
            for method in body.body
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
            for annotation in (
                method.returns,
                *(each.annotation for each in [*method.args.args, *method.args.kwonlyargs, method.args.kwarg] if each),
            )
            if annotation is not None
            for part in ast.walk(annotation)
            if isinstance(part, ast.Name)
        }
    assert sorted((named & imported) - set(klamm.__all__) - PLAIN.keys()) == []


# The hot path


def test_an_append_by_a_handle_makes_no_call_in_between(store: klamm.Store) -> None:
    """Topic.append goes the shortest way as Store.append does: no Python function is called but the lambda."""
    users = store["users"]
    users.append(b"x", acks=1)

    def calls(append: Callable[[], object]) -> int:
        import sys

        seen = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal seen
            seen += event == "call"

        sys.setprofile(count)
        try:
            append()
        finally:
            sys.setprofile(None)
        return seen

    by_handle = calls(lambda: users.append(b"x", key=b"k", acks=1))
    assert by_handle == calls(lambda: store.append("users", b"x", key=b"k", acks=1)) == 1


@pytest.mark.parametrize("by_handle", [False, True], ids=["store", "handle"])
def test_no_option_of_an_append_is_lost_on_the_shortest_way(store: klamm.Store, by_handle: bool) -> None:
    """Each option beside those that go that way, in a topic whose records do."""

    def append(value: Any, **options: Any) -> Any:
        return users.append(value, **options) if by_handle else store.append("users", value, **options)

    users = store["users"]
    assert [append(b"plain", acks=1), append(b"plain", key=b"k", acks=1)] == [0, 1]
    assert append(b"with headers", headers={"trace": b"4711"}, acks=1) == 2
    assert append(b"of 1970", timestamp=1, acks=1) == 3
    assert append({"id": 7}, serde="json", acks=1) == 4
    assert append(b"with a key", key="7", key_serde="str", acks=1) == 5
    assert append(b"without an offset", acks=0) is None
    with pytest.raises(klamm.UnknownTopic):
        append(b"of another partition", partition=1, acks=1)
    for acks in (True, 2, "1", None):
        with pytest.raises((TypeError, ValueError)):
            append(b"of no acks", acks=acks)
    with pytest.raises(TypeError, match="header"):
        append(b"of no option", header={}, acks=1)
    with users.consumer(start="earliest", wait=0) as reader:
        records = [record for batch in reader.batches() for record in batch]
    assert [record.value for record in records[:4]] == [b"plain", b"plain", b"with headers", b"of 1970"]
    assert [record.value for record in records[4:]] == [b'{"id":7}', b"with a key", b"without an offset"]
    assert [record.key for record in records] == [None, b"k", None, None, None, b"7", None]
    assert list(records[2].headers) == [("trace", b"4711")] and records[3].timestamp == 1
