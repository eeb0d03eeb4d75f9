"""Pipes: what a function returns goes where it should, once; what it keeps is the fold of what was committed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import klamm
from klamm.client.consume.range_reader import read_ranges
from klamm.client.pipe import runner as runner_module
from klamm.client.pipe import state as state_module
from klamm.disk import _os
from tests.client.conftest import values_in
from tests.procs import until

pytestmark = pytest.mark.usefixtures("shop")


def fill(store: klamm.Store, count: int, first: int = 0) -> None:
    """Append numbers, of three keys."""
    store.append_many("orders", [(b"k%d" % (n % 3), b"%d" % n) for n in range(first, first + count)], acks=1)


def numbers(store: klamm.Store, topic: str = "invoices") -> list[int]:
    return sorted(map(int, values_in(store, topic)))


def same(order: klamm.Record) -> Any:
    return order.value


def count(order: klamm.Record, seen: klamm.State) -> bytes:
    seen.value = b"%d" % (int(seen.value or 0) + 1)
    return b"%s:%s" % (order.value, seen.value)


async def later(order: klamm.Record) -> bytes:
    return order.value


async def one_by_one(order: klamm.Record) -> AsyncIterator[bytes]:
    yield order.value


class Later:
    async def __call__(self, order: klamm.Record) -> bytes:
        return order.value


def table(store: klamm.Store, topic: str = "counts") -> dict[bytes, bytes]:
    """What the changelog comes to."""
    with store.consumer(topic, wait=0) as consumer:
        latest = {record.key: record.value for batch in consumer.batches() for record in batch}
    return {key: value for key, value in latest.items() if value is not None}


# ---- what a function returns


def test_a_value_has_the_key_and_the_time_of_the_record_it_was_made_of(store: klamm.Store) -> None:
    store.append("orders", b"7", key=b"ada", timestamp=1_700_000_000_000, headers=[("a", b"b")])
    with store.pipe("orders", lambda order: order.value * 2, to="invoices") as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=1, outputs=1, dead_lettered=0)
    (invoice,) = store.consumer("invoices", wait=0)
    assert (invoice.key, invoice.value, tuple(invoice.headers)) == (b"ada", b"77", ())
    assert invoice.timestamp == 1_700_000_000_000


def test_a_record_that_is_returned_goes_on_as_it_is_and_none_is_dropped(store: klamm.Store) -> None:
    for n in range(4):
        store.append("orders", b"%d" % n, key=b"k", timestamp=1_700_000_000_000 + n, headers=[("n", b"%d" % n)])
    with store.pipe("orders", lambda order: order if int(order.value) % 2 else None, to="invoices") as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=4, outputs=2, dead_lettered=0)
    found = [(each.key, each.value, tuple(each.headers), each.timestamp) for each in store.consumer("invoices", wait=0)]
    assert found == [(b"k", b"%d" % n, (("n", b"%d" % n),), 1_700_000_000_000 + n) for n in (1, 3)]


def test_branches_name_topics(store: klamm.Store) -> None:
    def route(order: klamm.Record[str, Any]) -> Any:
        amount = order.value["amount"]
        if amount == 0:
            return None
        if amount < 0:
            return klamm.to("refunds", {"refund": -amount}, key="someone", headers=[("why", b"not")])
        return {"invoices": {"due": amount}, "refunds": order if amount > 10 else None}

    with store.producer(serde="json") as producer:
        for amount in (5, 0, -3, 20):
            producer.send("orders", {"amount": amount}, key="ada", partition=0)
    with store.pipe("orders", route, to=["invoices", "refunds"], serde="json") as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=4, outputs=4, dead_lettered=0)
    assert values_in(store, "invoices", serde="json") == [{"due": 5}, {"due": 20}]
    refunds = list(store.consumer("refunds", wait=0, serde="json"))
    assert [(each.key, each.value) for each in refunds] == [("someone", {"refund": 3}), ("ada", {"amount": 20})]
    assert refunds[0].headers == (("why", b"not"),)


def test_with_one_topic_a_mapping_is_a_value(store: klamm.Store) -> None:
    fill(store, 1)
    with store.pipe("orders", lambda order: {"refunds": 1}, to="invoices", serde="json") as pipe:
        pipe.run(wait=0)
    assert values_in(store, "invoices") == [b'{"refunds":1}']


def test_a_generator_makes_many_records_of_one(store: klamm.Store) -> None:
    def split(order: klamm.Record) -> Iterator[Any]:
        for n in range(int(order.value)):
            yield b"%d" % n
        yield None
        yield klamm.to("invoices", None, key=b"end")

    store.append("orders", b"3", key=b"k")
    with store.pipe("orders", split, to="invoices") as pipe:
        assert pipe.run(wait=0).outputs == 4
    found = [(each.key, each.value) for each in store.consumer("invoices", wait=0)]
    assert found == [(b"k", b"0"), (b"k", b"1"), (b"k", b"2"), (b"end", None)]


@pytest.mark.parametrize(
    ("to", "result", "message"),
    [
        ("invoices", klamm.to("invoces", b""), "'invoces' is not an output of this pipe (to= names 'invoices')"),
        (["invoices", "refunds"], b"x", "with several outputs returned bytes: expected {topic: value}"),
        (["invoices", "refunds"], {"other": b""}, "'other' is not an output of this pipe"),
        ((), b"x", "the function of a pipe without outputs returned bytes"),
    ],
)
def test_a_result_that_goes_nowhere_is_an_error(store: klamm.Store, to: Any, result: Any, message: str) -> None:
    fill(store, 1)
    pipe = store.pipe("orders", lambda order, state: result, to=to, state="counts")
    with pipe, pytest.raises((TypeError, klamm.InvalidSetting)) as caught:
        pipe.run(wait=0)
    assert message in str(caught.value)
    assert values_in(store, "invoices") == []


@pytest.mark.parametrize("function", [later, one_by_one])
def test_what_nothing_would_await_is_an_error(store: klamm.Store, function: Callable[[klamm.Record], Any]) -> None:
    fill(store, 1)
    pipe = store.pipe("orders", lambda order: function(order), to="invoices")  # noqa: PLW0108  # it hides the async
    with pipe, pytest.raises(TypeError, match="which nothing awaits: make it a plain function"):
        pipe.run(wait=0)
    assert values_in(store, "invoices") == []


# ---- state


def test_the_state_of_a_key_is_the_fold_of_its_records(store: klamm.Store) -> None:
    fill(store, 10)
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        pipe.run(wait=0)
        fill(store, 10, first=10)
        pipe.run(wait=0)
    assert table(store) == {b"k0": b"7", b"k1": b"7", b"k2": b"6"}
    assert sorted(values_in(store, "invoices")) == sorted(b"%d:%d" % (n, n // 3 + 1) for n in range(20))
    assert dict(store.table("counts").items()) == table(store)


def test_a_pipe_that_begins_again_goes_on_with_the_state_that_was_committed(store: klamm.Store) -> None:
    for number in range(3):
        fill(store, 6, first=6 * number)
        with store.pipe("orders", count, to="invoices", state="counts") as pipe:
            pipe.run(wait=0)
    assert table(store) == dict.fromkeys([b"k0", b"k1", b"k2"], b"6")


def test_a_partition_is_taken_over_with_the_state_of_a_transaction_whose_markers_are_missing(
    store: klamm.Store,
) -> None:
    """As if its process had been killed right after the decision."""
    transactions = store._acquired().transactions
    decide = transactions.decide

    def decide_and_fill_the_disk(*arguments: Any, **options: Any) -> Any:
        decided = decide(*arguments, **options)
        _os.trap(1, kinds=_os.WRITE, error=28, repeat=True)
        return decided

    fill(store, 3)
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        transactions.decide = decide_and_fill_the_disk  # type: ignore[method-assign]
        try:
            assert pipe.run(wait=0).records == 3
        finally:
            _os.trap(0)
            transactions.decide = decide  # type: ignore[method-assign]
        assert values_in(store, "counts") == [], "not yet"
    fill(store, 3, first=3)
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        pipe.run(wait=0)
    assert table(store) == dict.fromkeys([b"k0", b"k1", b"k2"], b"2")


def test_a_state_that_is_changed_in_place_is_kept_and_none_removes_it(store: klamm.Store) -> None:
    def collect(order: klamm.Record, basket: klamm.State) -> Any:
        if order.value == "pay":
            items, basket.value = basket.value, None
            return items
        if basket.value is None:
            basket.value = []
        basket.value.append(order.value)
        return None

    with store.producer(serde="json") as producer:
        for key, item in [("ada", "tea"), ("bob", "milk"), ("ada", "cake"), ("ada", "pay"), ("ada", "rum")]:
            producer.send("orders", item, key=key)
    with store.pipe("orders", collect, to="invoices", state="baskets", serde="json") as pipe:
        pipe.run(wait=0)
    assert values_in(store, "invoices", serde="json") == [["tea", "cake"]]
    assert {key: json.loads(value) for key, value in table(store, "baskets").items()} == {
        b"ada": ["rum"],
        b"bob": ["milk"],
    }


def test_a_state_that_does_not_change_is_not_written_again_and_of_many_changes_the_last_is(store: klamm.Store) -> None:
    def keep(order: klamm.Record, state: klamm.State) -> None:
        if order.value != b"look":
            state.value = order.value
        assert state.value is not None

    for value in b"1", b"2", b"look", b"2":
        store.append("orders", value, key=b"k")
    with store.pipe("orders", keep, state="last") as pipe:
        pipe.run(wait=0)
        store.append_many("orders", [(b"k", b"look"), (b"k", b"2")])
        pipe.run(wait=0)
    assert values_in(store, "last") == [b"2"]


def test_a_record_without_a_key_has_no_state_but_may_be_dropped(store: klamm.Store) -> None:
    def keyed(order: klamm.Record, state: klamm.State) -> Any:
        return None if order.value == b"drop" else state.value

    store.append("orders", b"drop", partition=0)
    with store.pipe("orders", keyed, to="invoices", state="counts") as pipe:
        assert pipe.run(wait=0).records == 1
        store.append("orders", b"use", partition=0)
        with pytest.raises(klamm.InvalidRecord, match="a record without a key has no state"):
            pipe.run(wait=0)


def test_a_state_that_is_not_bytes_wants_a_serde(store: klamm.Store) -> None:
    def put(order: klamm.Record, state: klamm.State) -> None:
        state.value = 7

    fill(store, 1)
    with store.pipe("orders", put, state="counts") as pipe, pytest.raises(TypeError, match="is bytes, not int"):
        pipe.run(wait=0)


def test_the_changelog_is_created_compacted_with_as_many_partitions_as_the_input(store: klamm.Store) -> None:
    fill(store, 6)
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        pipe.run(wait=0)
    info = store.topics.describe("counts")
    assert len(info.partitions) == 2 and info.settings["cleanup.policy"] == "compact"
    with store.consumer("orders", wait=0) as orders, store.consumer("counts", wait=0) as counts:
        assert {(each.key, each.partition) for each in counts} == {(each.key, each.partition) for each in orders}


def test_a_pipe_that_reads_a_long_changelog_stays_a_member(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[float] = []

    def watched(*arguments: Any) -> Iterator[klamm.Batch]:
        for batch in read_ranges(*arguments):
            member = pipe._session.member
            assert member is not None
            polled.append(member._polled)
            yield batch

    monkeypatch.setattr(state_module, "read_ranges", watched)
    store.topics.create("counts", 2, {"cleanup.policy": "compact"})
    store.append_many("counts", [(b"%d" % n, b"1") for n in range(20_000)], partition=0, acks=1)
    store.append("orders", b"0", key=b"7", partition=0)
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        pipe.run(wait=0)
    assert values_in(store, "invoices") == [b"0:2"]
    assert len(set(polled)) == len(polled) > 2


def test_a_changelog_that_does_not_suit_its_input_is_refused(store: klamm.Store) -> None:
    store.topics.create("three", 3, {"cleanup.policy": "compact"})
    with pytest.raises(klamm.InvalidSetting, match="three: 3 partitions, but orders has 2"):
        store.pipe("orders", count, to="invoices", state="three")
    store.topics.create("short", 2)
    with pytest.raises(klamm.InvalidSetting, match=r"short: cleanup\.policy is delete, which removes state"):
        store.pipe("orders", count, to="invoices", state="short")


def test_an_input_that_gets_more_partitions_stops_a_pipe_with_state(store: klamm.Store) -> None:
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        store.topics.add_partitions("orders", 3)
        store.append("orders", b"0", key=b"k", partition=2)
        with pytest.raises(klamm.InvalidSetting, match="counts: 2 partitions, but orders has 3"):
            pipe.run(wait=0)


# ---- what cannot be a pipe


def test_a_pipe_that_cannot_work_is_refused_when_it_is_made(store: klamm.Store) -> None:
    with pytest.raises(klamm.InvalidSetting, match="without outputs and state"):
        store.pipe("orders", same)
    for wrong in {"to": "orders"}, {"to": ["invoices", "invoices"]}, {"to": "invoices", "state": "invoices"}:
        with pytest.raises(klamm.InvalidSetting, match="is named twice"):
            store.pipe("orders", same, **wrong)
    for topics in [("nowhere", "invoices"), ("orders", "nowhere")]:
        with pytest.raises(klamm.UnknownTopic):
            store.pipe(topics[0], same, to=topics[1])
    with pytest.raises(klamm.InvalidSetting, match="'stop' or 'dead-letter'"):
        store.pipe("orders", same, to="invoices", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is a callable, not str"):
        store.pipe("orders", "same", to="invoices")  # type: ignore[arg-type]
    for function in (later, one_by_one, partial(later), Later()):
        with pytest.raises(TypeError, match="is a def, not an async def"):
            store.pipe("orders", function, to="invoices")
    with store.pipe("orders", same, to="invoices") as pipe:
        with pytest.raises(klamm.InvalidSetting, match="wait: -1 is invalid"):
            pipe.run(wait=-1)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pipe.__reduce__()
    with klamm.open(store.path, read_only=True) as reading, pytest.raises(klamm.ReadOnly):
        reading.pipe("orders", same, to="invoices")


def test_a_pipe_is_a_group_whose_name_says_what_it_joins(store: klamm.Store) -> None:
    with store.pipe("orders", same, to="invoices") as pipe, store.pipe("orders", same, to="refunds", group="mine") as b:
        assert (pipe.group, b.group) == ("pipe.orders.invoices", "mine")
        assert repr(pipe) == f"<Pipe of {store.path}: orders, group pipe.orders.invoices>"
        fill(store, 3)
        pipe.run(wait=0)
        assert sum(each.lag or 0 for each in store.groups.describe("pipe.orders.invoices").offsets) == 0
    with store.pipe("orders", count, state="counts") as pipe:
        assert pipe.group == "pipe.orders.counts"


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [6, 7, 8, 9, 10]), ("latest", [10])])
def test_a_pipe_whose_offset_is_gone_goes_on_where_it_is_told(
    store: klamm.Store, policy: klamm.OffsetReset, expected: list[int]
) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)], partition=0, acks=1)
    store.groups.reset("pipe.orders.invoices", ["orders"], to={("orders", 0): 3})
    store["orders"].delete_records({0: 6})
    gone = pytest.raises(klamm.OffsetOutOfRange, match="auto_offset_reset='earliest'")
    with store.pipe("orders", same, to="invoices") as pipe, gone:
        pipe.run(wait=0)
    with store.pipe("orders", same, to="invoices", auto_offset_reset=policy) as pipe:
        pipe.run(wait=0)
        store.append("orders", b"10", partition=0, acks=1)
        assert pipe.run(wait=0).records >= 1
    assert numbers(store) == expected
    with pytest.raises(klamm.InvalidSetting, match="auto_offset_reset"):
        store.pipe("orders", same, to="invoices", auto_offset_reset="newest")  # type: ignore[arg-type]


# ---- errors


def test_an_error_of_the_function_aborts_and_is_raised_and_nothing_is_done_twice(store: klamm.Store) -> None:
    broken = True

    def fails(order: klamm.Record, seen: klamm.State) -> bytes:
        if order.value == b"5" and broken:
            raise LookupError("no price")
        return count(order, seen)

    fill(store, 9)
    with store.pipe("orders", fails, to="invoices", state="counts", max_records=100) as pipe:
        with pytest.raises(LookupError, match="no price") as caught:
            pipe.run(wait=0)
        (note,) = caught.value.__notes__
        assert note.startswith("while handling orders/")
        assert values_in(store, "invoices") == values_in(store, "counts") == []
        broken = False
        pipe.run(wait=0)
    assert sorted(values_in(store, "invoices")) == sorted(b"%d:%d" % (n, n // 3 + 1) for n in range(9))
    assert table(store) == dict.fromkeys([b"k0", b"k1", b"k2"], b"3")
    assert [each.state for each in store.transactions] == ["prepared_commit"]  # and its markers are written


def test_dead_letters_are_part_of_the_transaction_and_leave_the_state_alone(store: klamm.Store) -> None:
    def fails(order: klamm.Record, seen: klamm.State) -> bytes:
        result = count(order, seen)
        if order.value == b"4":
            raise LookupError("no price")
        return result

    fill(store, 9)
    with store.pipe("orders", fails, to="invoices", state="counts", on_error="dead-letter") as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=9, outputs=8, dead_lettered=1)
    assert table(store) == {b"k0": b"3", b"k1": b"2", b"k2": b"3"}
    (letter,) = store.dead_letters("orders.dlq")
    assert (letter.record.key, letter.record.value) == (b"k1", b"4")
    assert (letter.error, letter.reason, letter.attempts) == ("LookupError", "no price", 1)
    assert letter.origin is not None and letter.origin.topic == "orders"
    store.redrive("orders.dlq")
    with store.pipe("orders", count, to="invoices", state="counts") as pipe:
        assert pipe.run(wait=0).records == 1
    assert table(store) == dict.fromkeys([b"k0", b"k1", b"k2"], b"3")


def test_a_record_whose_output_cannot_be_sent_is_a_dead_letter_without_any_output(
    store: klamm.Store,
) -> None:
    store.topics.alter("refunds", {"max.message.bytes": 300})

    def both(order: klamm.Record, seen: klamm.State) -> dict[str, bytes]:
        seen.value = b"%d" % (int(seen.value or 0) + 1)
        return {"invoices": order.value, "refunds": order.value * (1000 if order.value == b"4" else 1)}

    fill(store, 9)
    options: dict[str, Any] = {"to": ["invoices", "refunds"], "state": "counts"}
    with store.pipe("orders", both, on_error="dead-letter", **options) as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=9, outputs=16, dead_lettered=1)
    assert numbers(store) == numbers(store, "refunds") == [0, 1, 2, 3, 5, 6, 7, 8]
    assert table(store) == {b"k0": b"3", b"k1": b"2", b"k2": b"3"}
    assert [letter.error for letter in store.dead_letters("orders.dlq")] == ["klamm.errors.RecordTooLarge"]


def test_an_output_that_cannot_be_sent_stops_the_pipe(store: klamm.Store) -> None:
    store.topics.alter("invoices", {"max.message.bytes": 300})
    fill(store, 1)
    pipe = store.pipe("orders", lambda order: bytes(1000), to="invoices")
    with pipe, pytest.raises(klamm.RecordTooLarge) as caught:
        pipe.run(wait=0)
    assert caught.value.__notes__[0].startswith("while handling orders/")


def test_a_value_that_does_not_suit_the_serde_is_an_error_of_its_record(store: klamm.Store) -> None:
    store.append_many("orders", [b"{}", b"{", b"{}"], partition=0)
    with store.pipe("orders", same, to="invoices", serde="json", on_error="dead-letter") as pipe:
        assert pipe.run(wait=0) == klamm.PipeReport(records=3, outputs=2, dead_lettered=1)


# ---- transactions


def transactions_in(store: klamm.Store, topic: str) -> int:
    """How many markers there are: one for each transaction."""
    info = store.topics.describe(topic)
    return sum(each.end for each in info.partitions) - len(values_in(store, topic))


def test_a_transaction_takes_as_many_records_as_it_may_of_all_partitions(store: klamm.Store) -> None:
    fill(store, 100)
    with store.pipe("orders", same, to="invoices", max_records=30) as pipe:
        pipe.run(wait=0)
    assert transactions_in(store, "invoices") == 4
    assert numbers(store) == list(range(100))


def test_a_slow_function_does_not_keep_a_transaction_open(store: klamm.Store) -> None:
    def slow(order: klamm.Record) -> bytes:
        time.sleep(0.3)
        return same(order)

    fill(store, 4)
    with store.pipe("orders", slow, to="invoices") as pipe:
        pipe.run(wait=0)
    assert transactions_in(store, "invoices") >= 2


def test_a_function_that_takes_longer_than_a_transaction_may_gets_through(store: klamm.Store) -> None:
    """The first output is larger than a batch: the transaction is registered, and timed, before the second record."""
    calls = []

    def slow(order: klamm.Record) -> Any:
        calls.append(order.value)
        assert len(calls) < 20
        if order.value == b"1":
            time.sleep(1.8)
            store.maintain()  # as another process does now and then: it ends what takes too long
        return b"%s " % order.value * (100_000 if order.value == b"0" else 1)

    store.append_many("orders", [b"0", b"1", b"2"], partition=0)
    with store.pipe("orders", slow, to="invoices", max_poll_interval_ms=3000) as pipe:
        assert pipe.run(wait=0).records == 3
    assert [value.split()[0] for value in values_in(store, "invoices")] == [b"0", b"1", b"2"]
    assert calls.count(b"0") == 2


# ---- members


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_partitions_and_their_state_move_between_pipes(store: klamm.Store) -> None:
    """Pipes come and go while records are written; each record is counted once."""
    written = 0

    def work() -> None:
        with store.pipe("orders", count, to="invoices", state="counts", max_records=7) as pipe:
            pipes.append(pipe)
            pipe.run()

    pipes: list[klamm.Pipe] = []
    threads = [in_thread(work)]
    try:
        for _ in range(6):
            for _ in range(20):
                fill(store, 5, first=written)
                written += 5
                time.sleep(0.005)
            threads.append(in_thread(work))
            until(lambda: len(pipes) == len(threads), "the pipe is made")
            if len(threads) > 2:
                pipes[len(threads) - 3].stop()
        until(lambda: len(values_in(store, "invoices")) >= written, "all is read")
    finally:
        for pipe in pipes:
            pipe.stop()
        for thread in threads:
            thread.join()
    assert sorted(values_in(store, "invoices")) == sorted(b"%d:%d" % (n, n // 3 + 1) for n in range(written))


def caught_up(store: klamm.Store, pipe: klamm.Pipe, count: int, wait: float | timedelta = 0) -> None:
    until(lambda: (pipe.run(wait=wait), len(values_in(store, "invoices")) >= count)[1], f"{count} outputs")


@pytest.mark.parametrize("longest_s", [0.0, 600.0], ids=["commits at once", "reads on"])
def test_a_member_that_has_lost_its_partition_commits_nothing_of_it(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    """Its function hangs for longer than a member may. Another one takes over, goes on, and goes; the first one commits
    at once, or gets its partitions back before it does.
    """
    monkeypatch.setattr(runner_module, "_LONGEST_S", longest_s)
    hangs, goes_on = threading.Event(), threading.Event()

    def hanging(order: klamm.Record, seen: klamm.State) -> bytes:
        result = count(order, seen)
        if order.value == b"4":
            hangs.set()
            assert goes_on.wait(60)
        return result + b"!"

    fill(store, 9)
    options: dict[str, Any] = {"to": "invoices", "state": "counts", "group": "g"}
    with store.pipe("orders", hanging, max_poll_interval_ms=200, **options) as zombie:
        thread = in_thread(zombie.run)
        assert hangs.wait(60)
        with store.pipe("orders", count, **options) as pipe:
            caught_up(store, pipe, 9)
            fill(store, 3, first=9)
            caught_up(store, pipe, 12)
        goes_on.set()
        fill(store, 3, first=12)
        until(lambda: len(values_in(store, "invoices")) >= 15, "the first one begins again")
        zombie.stop()
        thread.join()
    found = sorted(value.rstrip(b"!") for value in values_in(store, "invoices"))
    assert found == sorted(b"%d:%d" % (n, n // 3 + 1) for n in range(15))
    assert table(store) == dict.fromkeys([b"k0", b"k1", b"k2"], b"5")
