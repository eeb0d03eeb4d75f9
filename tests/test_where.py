"""One vocabulary of where to start and end: every form as a value, as text, and at every door."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
import klamm.aio
from klamm.client.consume.tail import topic_history
from klamm.errors import InvalidSetting
from klamm.times import to_ms
from klamm.types import Position, TopicPartition
from klamm.where import Where, fixed, is_named, last, topics_of

INT64 = 2**63 - 1

offsets = st.integers(0, INT64)
partitions = st.integers(0, 2**31 - 1)
positions = offsets | st.builds(Position, offsets, st.integers(-1, 2**31 - 1))
names = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
forms = st.one_of(
    st.sampled_from(["earliest", "latest"]),
    offsets,
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001  # they get a zone
    st.timedeltas(timedelta(), timedelta(days=365_000)),
    st.integers(0, 10**14).map(lambda ms: ("timestamp", ms)),
    offsets.map(lambda n: ("last", n)),
    offsets.map(last),
    st.dictionaries(partitions, positions),
    st.dictionaries(st.builds(TopicPartition, names, partitions), positions),
)


@given(form=forms)
def test_every_form_round_trips_as_text(form: Any) -> None:
    where = Where(form)
    assert Where(str(where)) == where
    assert hash(Where(str(where))) == hash(where)
    assert Where(where) == where
    assert pickle.loads(pickle.dumps(where)) == where  # our own
    assert repr(where) == f"Where({str(where)!r})"


@given(form=forms, other=forms)
def test_two_are_equal_if_their_text_is(form: Any, other: Any) -> None:
    # Positions are a mapping: in any order.
    texts = [sorted(str(Where(each)).split(",")) for each in (form, other)]
    assert (Where(form) == Where(other)) == (texts[0] == texts[1])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("earliest", "earliest"),
        (" latest ", "latest"),
        ("4711", 4711),
        ("@4711", 4711),
        ("@1731650000000", 1_731_650_000_000),
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("2026-11-15T10:00:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC)),
        ("2026-11-15T12:00+02:00", datetime(2026, 11, 15, 10, tzinfo=UTC)),
        ("2026-11-15", datetime(2026, 11, 15).astimezone()),  # local, as text without a zone is
        ("last 10", ("last", 10)),
        ("0@4711,1@815:3", {0: 4711, 1: Position(815, 3)}),
        ("orders/0@4711, or-ders.x/1@815", {("orders", 0): 4711, ("or-ders.x", 1): 815}),
        ("{}", {}),
    ],
)
def test_text_means_the_same_as_the_value(text: str, form: Any) -> None:
    assert Where(text) == Where(form)


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ("", InvalidSetting),
        ("begin", InvalidSetting),
        ("-10", InvalidSetting),
        ("last", InvalidSetting),
        ("last -1", InvalidSetting),
        ("last x", InvalidSetting),
        ("@", InvalidSetting),
        ("@x", InvalidSetting),
        ("0@1,", InvalidSetting),
        ("0@1;1@2", InvalidSetting),
        ("@9999999999999999999", InvalidSetting),
        ("2026-13-01", InvalidSetting),
        ("1 hour", InvalidSetting),
        (-1, InvalidSetting),
        (2**63, InvalidSetting),
        (True, TypeError),
        (1.5, TypeError),
        (None, TypeError),
        (b"earliest", TypeError),
        ([0], TypeError),
        (("last", -1), InvalidSetting),
        (("last", "x"), TypeError),
        (("by", 1), InvalidSetting),
        (("last", 1, 2), InvalidSetting),
        (("timestamp", 10**15), InvalidSetting),
        (timedelta(seconds=-1), InvalidSetting),
        (timedelta.max, InvalidSetting),
        (datetime(2026, 11, 15), ValueError),  # noqa: DTZ001  # that is the test
        ({"0": 1}, TypeError),
        ({0: "1"}, TypeError),
        ({0: -1}, InvalidSetting),
        ({-1: 0}, TypeError),
        ({True: 0}, TypeError),
        ({("orders", "0"): 1}, TypeError),
        ({0: (1, "x")}, TypeError),
    ],
)
def test_what_is_no_form_is_refused_by_the_name_of_the_option(form: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Where(form, name="start")
    if error is not ValueError:
        assert str(caught.value).startswith(("start", "a leader epoch"))


def test_a_long_number_as_text_is_refused_with_both_ways_to_write_it() -> None:
    with pytest.raises(InvalidSetting) as caught:
        Where("1731650000000", name="--from")
    assert caught.value.message == "--from: '1731650000000' may be an offset or a time"
    assert caught.value.hint == (
        "write @1731650000000 for the offset, or 2024-11-15T05:53:20.000Z for the milliseconds since 1970"
    )
    assert Where("99999999999") == Where(99_999_999_999)
    with pytest.raises(InvalidSetting) as caught:
        Where("999999999999999999")
    assert caught.value.hint == "write @999999999999999999 for the offset"


def test_positions_say_which_partitions_they_name() -> None:
    assert topics_of(Where({("orders", 0): 1, ("users", 2): 3, ("orders", 1): 1})) == {"orders": [0, 1], "users": [2]}
    assert topics_of(Where({0: 1})) is None
    assert topics_of(Where("earliest")) is None
    assert is_named(Where({0: 1}), "orders", 0)
    assert not is_named(Where({0: 1}), "orders", 1)
    assert not is_named(Where({("users", 0): 1}), "orders", 0)
    assert not is_named(Where(5), "orders", 0)


def test_a_duration_ago_is_fixed_once() -> None:
    assert fixed(Where("1h"), 7_200_000) == Where(("timestamp", 3_600_000))
    assert fixed(Where("3h"), 7_200_000) == Where(datetime(1969, 12, 31, 23, tzinfo=UTC))
    assert fixed(Where(5), 7_200_000) == Where(5)


# ---- at every door

HOUR = timedelta(hours=1)
COUNT = 100


@pytest.fixture
def hourly(store: klamm.Store) -> klamm.Store:
    """A hundred records in a partition, an hour apart, the last of them an hour ago; none of another topic."""
    store.topics.create("orders", settings={"retention.ms": -1})
    times = [to_ms(datetime.now(UTC) - (COUNT - n) * HOUR) for n in range(COUNT)]
    store.append_many("orders", [(b"k", b"%d" % n, None, times[n]) for n in range(COUNT)], acks=1)
    with store.consumer("orders", group="billing", wait=0) as consumer:
        consumer.poll(1)
        consumer.commit()
    return store


def read_by_consumer(store: klamm.Store, where: Any) -> list[int]:
    with store.consumer("orders", start=where, wait=0) as consumer:
        return [record.offset for record in consumer]


def read_after_seek_to(store: klamm.Store, where: Any) -> list[int]:
    with store.consumer("orders", wait=0) as consumer:
        consumer.poll(7)
        consumer.seek_to(where)
        return [record.offset for record in consumer]


def read_by_scan(store: klamm.Store, where: Any) -> list[int]:
    before, after = (store.scan("orders", columns=["offset"], **{side: where}) for side in ("end", "start"))
    offsets: list[Any] = after.to_table()["offset"].to_pylist()
    assert before.to_table()["offset"].to_pylist() == [*range(COUNT - len(offsets))]  # the same bound, as an end
    return offsets


def read_by_tail(store: klamm.Store, where: Any) -> list[int]:
    return [record.offset for record in store.tail("orders", start=where)]


def read_by_aio_tail(store: klamm.Store, where: Any) -> list[int]:
    async def read() -> list[int]:
        async with klamm.aio.open(store.path) as other:
            return [record.offset async for record in other.tail("orders", start=where)]

    return asyncio.run(read())


def read_by_reset_group(store: klamm.Store, where: Any) -> list[int]:
    (move,) = store.groups.plan_reset("billing", "orders", to=where)
    store.groups.apply([move])
    with store.consumer("orders", group="billing", wait=0) as consumer:
        return [record.offset for record in consumer]


def read_by_table_changes(store: klamm.Store, where: Any) -> list[int]:
    pytest.importorskip("rocksdict")
    with store.table("orders") as table:
        return [record.offset for record in table.changes(where)]


DOORS: list[Callable[[klamm.Store, Any], list[int]]] = [
    read_by_consumer,
    read_after_seek_to,
    read_by_scan,
    read_by_tail,
    read_by_aio_tail,
    read_by_reset_group,
    read_by_table_changes,
]
FORMS: list[tuple[Any, int]] = [
    ("earliest", 0),
    ("latest", 100),
    (42, 42),
    (100, 100),
    (lambda: datetime.now(UTC) - 50.5 * HOUR, 50),
    (lambda: ("timestamp", to_ms(datetime.now(UTC) - 50.5 * HOUR)), 50),
    (datetime(2020, 1, 1, tzinfo=UTC), 0),
    (50.5 * HOUR, 50),
    (timedelta(minutes=1), 100),
    (last(10), 90),
    (("last", 0), 100),
    (("last", 1000), 0),
    ({0: 17}, 17),
    ({TopicPartition("orders", 0): Position(18, 0)}, 18),
]


@pytest.mark.parametrize("is_text", [False, True], ids=["value", "text"])
@pytest.mark.parametrize(("form", "first"), FORMS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("read", DOORS, ids=lambda read: read.__name__.removeprefix("read_"))
def test_every_door_takes_every_form_and_means_the_same(
    hourly: klamm.Store, read: Callable[[klamm.Store, Any], list[int]], form: Any, first: int, is_text: bool
) -> None:
    where = form() if callable(form) else form
    assert read(hourly, str(Where(where)) if is_text else where) == [*range(first, COUNT)]


@pytest.mark.parametrize("read", DOORS, ids=lambda read: read.__name__.removeprefix("read_"))
@pytest.mark.parametrize("wrong", ["begin", -1, ("by", 1), True, {"x": 1}, datetime(2026, 1, 1)], ids=repr)  # noqa: DTZ001
def test_every_door_refuses_what_is_no_form(
    hourly: klamm.Store, read: Callable[[klamm.Store, Any], list[int]], wrong: Any
) -> None:
    with pytest.raises((InvalidSetting, TypeError, ValueError)):
        read(hourly, wrong)


@pytest.mark.parametrize("start", ["earliest", "latest", 5, last(0), {0: 1}], ids=str)
def test_a_partition_that_is_added_later_is_read_from_its_first_record(store: klamm.Store, start: Any) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"old"] * 10, acks=1)
    with store.consumer("orders", start=start, wait=0) as consumer:
        store.topics.add_partitions("orders", 2)
        store.append("orders", b"new", partition=1, acks=1)
        assert [record.offset for record in consumer if record.partition == 1] == [0]


def test_a_history_ends_before_a_transaction_that_is_open(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"0", acks=1)
    with store.transaction(batch_bytes=1) as tx:
        tx.send("orders", b"1")
        assert store.topics.describe("orders").partitions[0].end == 2
        history = topic_history(store._acquired(), "orders", None, None, None, None)
        assert history.ends == {("orders", 0): Position(1)}


def test_the_moment_of_a_duration_is_fixed_when_a_consumer_is_made(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"old", acks=1)
    klamm.testing.advance(store, hours=2)
    with store.consumer("orders", start="1h", wait=0) as consumer:
        klamm.testing.advance(store, hours=2)
        store.topics.add_partitions("orders", 2)
        for value, ago in ((b"before", 3.5 * HOUR), (b"since", 2.5 * HOUR)):
            store.append("orders", value, partition=1, timestamp=klamm.testing.now(store) - ago)
        assert [record.value for record in consumer] == [b"since"]
