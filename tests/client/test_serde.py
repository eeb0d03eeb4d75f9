"""Objects to bytes and back, and what happens to those that cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

import klamm
from tests.client.conftest import values_in


def sent(store: klamm.Store, values: list[Any], *, keys: list[Any] | None = None, **serdes: Any) -> list[klamm.Record]:
    with store.producer(acks=1, **serdes) as producer:
        for n, value in enumerate(values):
            producer.send("orders", value, key=keys[n] if keys else None)
    with store.consumer("orders", wait=0, **serdes) as consumer:
        return list(consumer)


@pytest.mark.parametrize(
    ("serde", "values", "raw"),
    [
        ("json", [{"id": 1, "ü": None}, [1, 2.5], "text", 5, True], b'{"id":1,"\xc3\xbc":null}'),
        ("str", ["text", "ü", ""], b"text"),
        ("bytes", [b"bytes", b""], b"bytes"),
        ((lambda value: b"%d" % value, int), [5, 77], b"5"),
    ],
)
def test_values_come_back_as_they_were_sent(orders: klamm.Store, serde: Any, values: list[Any], raw: bytes) -> None:
    assert [record.value for record in sent(orders, values, serde=serde)] == values
    assert values_in(orders)[0] == raw


def test_none_is_a_null_with_every_serde(orders: klamm.Store) -> None:
    for serde in ("json", "str", "bytes"):
        assert sent(orders, [None], serde=serde)[-1].value is None


@pytest.mark.parametrize("serde", ["json", "str"])
def test_keys_are_text_where_values_are(orders: klamm.Store, serde: Any) -> None:
    records = sent(orders, ["a", "b", "c"], keys=["user-1", b"user-2", None], serde=serde)
    assert [record.key for record in records] == ["user-1", "user-2", None]


def test_keys_have_a_serde_of_their_own(orders: klamm.Store) -> None:
    records = sent(orders, [b"x", b"y"], keys=[{"id": 1}, [2]], key_serde="json")
    assert [record.key for record in records] == [{"id": 1}, [2]]
    with pytest.raises(TypeError):
        sent(orders, [b"x"], keys=["text"])


def test_tuples_and_values_go_through_the_serde_too(orders: klamm.Store) -> None:
    sent(orders, [{"n": 1}], keys=["k"], serde="json")
    form: klamm.Form
    for form, expected in (("tuples", ("k", {"n": 1})), ("values", {"n": 1})):
        with orders.consumer("orders", wait=0, serde="json", form=form) as consumer:
            assert list(consumer) == [expected]


@pytest.mark.parametrize(
    ("serde", "wrong"), [("json", {1, 2}), ("json", float("nan")), ("str", b"bytes"), ("str", 5), ("bytes", "text")]
)
def test_what_a_serde_cannot_take_is_refused_by_send_and_loses_no_other(
    orders: klamm.Store, serde: klamm.SerdeName, wrong: Any
) -> None:
    good: Any = b"x" if serde == "bytes" else "x"
    with orders.producer(serde=serde, acks=1) as producer:
        producer.send("orders", good)
        with pytest.raises((TypeError, ValueError)):
            producer.send("orders", wrong)
        producer.send("orders", good)
    assert len(values_in(orders)) == 2


@pytest.mark.parametrize("form", ["records", "tuples", "values"])
def test_a_record_that_does_not_suit_the_serde_is_told_in_its_turn_and_can_be_skipped(
    orders: klamm.Store, form: klamm.Form
) -> None:
    orders.append_many("orders", [b"1", b"2", b"not json", b"4"], acks=1)
    with orders.consumer("orders", wait=0, serde="json", form=form) as consumer:
        assert len(consumer.poll()) == 2
        for _ in range(2):
            with pytest.raises(json.JSONDecodeError) as caught:
                consumer.poll()
            assert "orders/0 at offset 2" in caught.value.__notes__[0] and "seek to 3" in caught.value.__notes__[0]
            assert consumer.position("orders", 0).offset == 2
        consumer.seek("orders", 0, 3)
        (last,) = consumer.poll()
        assert {"records": lambda: last.value, "tuples": lambda: last[1], "values": lambda: last}[form]() == 4


def test_a_key_that_does_not_suit_the_serde_is_told_too(orders: klamm.Store) -> None:
    orders.append("orders", b'"x"', key=b"\xff\xfe", acks=1)
    with orders.consumer("orders", wait=0, serde="json") as consumer, pytest.raises(UnicodeDecodeError):
        consumer.poll()
    with orders.consumer("orders", wait=0, serde="json", form="values") as consumer:
        assert consumer.poll() == ["x"]
    with orders.consumer("orders", wait=0, serde="json", key_serde="bytes") as consumer:
        assert consumer.poll()[0].key == b"\xff\xfe"


@pytest.mark.parametrize("serde", ["xml", "JSON", ""])
def test_an_unknown_serde_names_those_there_are(orders: klamm.Store, serde: Any) -> None:
    for make in (orders.producer, lambda **options: orders.consumer("orders", **options)):
        with pytest.raises(klamm.InvalidSetting, match="'json'"):
            make(serde=serde)


@pytest.mark.parametrize("serde", [5, (len,), (len, 5), ("json", "json")])
def test_a_serde_is_a_name_or_a_pair_of_callables(orders: klamm.Store, serde: Any) -> None:
    with pytest.raises(TypeError, match="pair of callables"):
        orders.producer(serde=serde)
