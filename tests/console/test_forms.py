"""Forms that change the store: what they are filled with, what they send back, and what an error leaves of them."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import Any

import pytest

import klamm
from klamm.console.sampler import GroupPoint, Look
from tests.console.visitor import Visitor


def test_a_record_is_produced_as_the_form_says(store: klamm.Store, editor: Visitor) -> None:
    token = editor.csrf("/topics/orders/produce")
    fields = {"csrf": token, "key": "k", "value": '{"a": 1}\r\n ', "headers": "trace = 7\n", "partition": "2"}
    answer = editor.post("/topics/orders/produce", fields)
    assert (answer.status, answer.headers["location"]) == (303, "/topics/orders/2/20")
    (record,) = store.tail("orders", 1, start={2: 20})
    assert (record.key, record.value, list(record.headers)) == (b"k", b'{"a": 1}\n ', [("trace", b"7")])


@pytest.mark.parametrize(
    ("kind", "value", "sent"), [("hex", "00 ff", b"\x00\xff"), ("none", "", None), ("text", "", b"")]
)
def test_a_value_is_text_or_hex_or_none(
    store: klamm.Store, editor: Visitor, kind: str, value: str, sent: bytes | None
) -> None:
    token = editor.csrf("/topics/orders/produce")
    answer = editor.post("/topics/orders/produce", {"csrf": token, "kind": kind, "value": value, "key": "k"})
    assert answer.status == 303
    (record,) = store.tail("orders", 1)
    assert record.value == sent


def test_a_form_that_makes_no_sense_appends_nothing(store: klamm.Store, editor: Visitor) -> None:
    token = editor.csrf("/topics/orders/produce")
    for fields, word in (({"kind": "hex", "value": "xy"}, "hex"), ({"headers": "x"}, "name=value")):
        answer = editor.post("/topics/orders/produce", {"csrf": token, **fields})
        assert answer.status >= 400 and word in answer.words
    assert store["orders"].info().count == 60


@pytest.mark.parametrize(
    ("address", "typed"),
    [
        ("/topics/orders?from=then&key=k%22", ['name="from" value="then"', 'name="key" value="k&quot;"']),
        ("/topics/orders/purge?before=then", ['name="before" value="then"']),
        ("/topics/orders/schema?n=0", ['name="n" value="0"']),
        ("/groups/reset?group=billing&to=then", ['name="to" value="then"']),
        ("/dead-letters/orders.dlq?plan=1&limit=some", ['name="limit" value="some"']),
        ("/sql?q=selct+%3C1", [">selct &lt;1</textarea>"]),
    ],
)
def test_an_error_leaves_the_form_as_it_was_filled_in(editor: Visitor, address: str, typed: list[str]) -> None:
    answer = editor.get(address)
    assert answer.status == 400 and 'role="alert"' in answer.text
    assert all(text in answer.text for text in typed)


def test_a_record_that_cannot_be_appended_is_not_typed_again(store: klamm.Store, editor: Visitor) -> None:
    fields = {
        "csrf": editor.csrf("/topics/orders/produce"),
        "key": "k<",
        "kind": "hex",
        "value": "\nxy",
        "partition": "1",
    }
    page = editor.post("/topics/orders/produce", {**fields, "headers": "a=b"}).text
    assert {name: unescape(text) for text, name in _areas(page)} == {"value": "\r\nxy", "headers": "a=b"}
    assert 'name="key" value="k&lt;"' in page and _chosen(page, "kind") == "hex" and _chosen(page, "partition") == "1"
    letter = "/dead-letters/orders.dlq/0/0"
    fields = {"csrf": editor.csrf(letter), "kind": "hex", "value": "xy", "to": "elsewhere"}
    page = editor.post(letter, fields).text
    assert ">xy</textarea>" in page and 'name="to" value="elsewhere"' in page and "is not hex" in page


TYPED_AGAIN = {
    "markup": b'{"a": "<b>&amp;"}\n',
    "newlines": b"\n\nx\n",
    "carriage return": b"\r\n",
    "binary": b"\x00\xff",
    "tombstone": None,
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467".encode(),
    "marks of direction": "\ufeff\u05d0\u200f \u202egnp.exe".encode(),
    "escape": b"\x1b[31mred",
    "what spells out": rb"\u202e\x1b",
}


@pytest.mark.parametrize("value", TYPED_AGAIN.values(), ids=TYPED_AGAIN.keys())
def test_a_record_that_is_sent_again_is_the_same(store: klamm.Store, editor: Visitor, value: bytes | None) -> None:
    store.append("orders", value, key=b"again", partition=0, headers={"h": "v=w"})
    page = editor.get("/topics/orders/produce?like=0/20").text
    fields = dict(re.findall(r'<input name="(\w+)" value="([^"]*)"', page))
    fields |= {name: unescape(text) for text, name in _areas(page)}
    fields |= {"kind": _chosen(page, "kind"), "csrf": editor.csrf("/topics/orders/produce"), "partition": "0"}
    assert editor.post("/topics/orders/produce", fields).headers["location"] == "/topics/orders/0/21"
    (record,) = store.tail("orders", 1, start={0: 21, 1: 20, 2: 20})
    assert (record.key, record.value, list(record.headers)) == (b"again", value, [("h", b"v=w")])


@pytest.mark.parametrize(
    ("key", "headers", "is_exact"),
    [
        (b" k ", [("h", b"v=w")], True),
        (None, [], True),
        (b"a\nb", [], False),
        (b"", [], False),
        (b"\xff", [], False),
        (b"k", [("h", b" v")], False),
        (b"k", [("h", b"1\n2")], False),
        (b"k", [("h", None)], False),
        (b"k", [("h", "a\u2028b".encode())], True),
    ],
)
def test_a_key_or_header_that_cannot_be_typed_is_said_to_be_another(
    store: klamm.Store, editor: Visitor, key: bytes | None, headers: list[tuple[str, Any]], is_exact: bool
) -> None:
    store.append("orders", b"v", key=key, partition=0, headers=headers)
    page = editor.get("/topics/orders/produce?like=0/20")
    assert ("cannot be typed as they are" not in page.words) is is_exact
    fields = {name: unescape(text) for name, text in re.findall(r'<input name="(\w+)" value="([^"]*)"', page.text)}
    fields |= {name: unescape(text) for text, name in _areas(page.text)}
    if is_exact:
        fields["csrf"] = editor.csrf("/topics/orders/produce")
        assert editor.post("/topics/orders/produce", fields).status == 303
        (record,) = store.tail("orders", 1)
        assert (record.key, list(record.headers)) == (key, headers)


def _areas(page: str) -> list[tuple[str, str]]:
    found = re.findall(r'<textarea name="(\w+)"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    return [(text.removeprefix("\n").replace("\n", "\r\n"), name) for name, text in found]


def _chosen(page: str, name: str) -> str:
    options = re.search(rf'<select name="{name}">(.*?)</select>', page, re.DOTALL)
    assert options
    chosen = re.search(r'<option value="(\w*)" selected', options[1])
    return chosen[1] if chosen else ""


def _plan_fields(editor: Visitor, to: str) -> dict[str, str]:
    page = editor.get(f"/groups/reset?group=billing&to={to}").text
    form = page.partition('method="post"')[0].rpartition("<form")[2] + page.partition('method="post"')[2]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_a_reset_says_what_it_means_and_then_does_it(store: klamm.Store, editor: Visitor) -> None:
    for n in range(3):
        editor.sampler.add(Look(n * 1000, {"orders": 60}, {"billing": GroupPoint(n * 1000, 60, 25 - 10 * n, 9000)}))
    data = editor.get("/api/groups/reset?group=billing&to=%4010").json
    assert (data["again"], data["skipped"], data["again_ms"]) == (25, 0, 2500)
    size = sum(partition.size for partition in store["orders"].info().partitions)
    assert data["again_bytes"] == pytest.approx(size * 25 / 60, rel=0.05)
    assert [(row["before"], row["after"]) for row in data["plan"]] == [(20, 10), (15, 10), (20, 10)]
    answer = editor.post("/groups/reset", _plan_fields(editor, "%4010"))
    assert (answer.status, answer.headers["location"]) == (303, "/groups/show?group=billing")
    committed = [offset.committed for offset in store.groups.describe("billing").offsets]
    assert [position and position.offset for position in committed] == [10, 10, 10]


def test_a_reset_takes_as_long_as_the_group_last_read(store: klamm.Store, visitor: Visitor) -> None:
    """A group that can be moved has no members, and reads nothing now."""
    assert "it was not seen to read" in visitor.get("/groups/reset?group=billing&to=earliest").words
    now_ms = time.time_ns() // 1_000_000
    for age_s, lag in ((300, 100), (298, 90), (296, 80), (294, 80), (10, 80), (2, 80), (0, 80)):
        point = GroupPoint(now_ms - age_s * 1000, 200, lag, 9000)
        visitor.sampler.add(Look(point.time_ms, {"orders": 200}, {"billing": point}))
    data = visitor.get("/api/groups/reset?group=billing&to=earliest").json
    assert (data["again"], data["out_per_s"], data["again_ms"]) == (55, 5.0, 11_000)
    assert data["rate_of_ms"] == now_ms - 296_000
    assert "11 s at 5.0/s, as it read until 20" in visitor.get("/groups/reset?group=billing&to=earliest").words


def test_a_plan_that_is_another_one_by_now_is_not_carried_out(store: klamm.Store, editor: Visitor) -> None:
    fields = _plan_fields(editor, "earliest")
    store.groups.reset("billing", "orders", to={0: 19, 1: 15, 2: 20})
    answer = editor.post("/groups/reset", fields)
    assert answer.status == 409 and store.groups.describe("billing").lag == 6


def test_a_group_with_members_is_not_moved(store: klamm.Store, editor: Visitor) -> None:
    with store.consumer("orders", group="billing", wait=0) as consumer:
        consumer.poll()
        assert "has members" in editor.get("/groups/reset?group=billing&to=earliest").words


def test_an_open_transaction_is_shown_and_aborted(store: klamm.Store, editor: Visitor) -> None:
    with pytest.raises(klamm.TransactionError), store.transaction(batch_bytes=1) as tx:  # noqa: PT012
        tx.send("orders", b"x")
        (row,) = editor.get("/api/transactions").json["transactions"]
        assert row["state"] == "ongoing" and row["age_ms"] >= 0
        token = editor.csrf("/transactions")
        shown = {name: str(row[name]) for name in ("producer_id", "epoch", "started_ms")}
        assert all(
            f'name="{name}" value="{value}"' in editor.get("/transactions").text for name, value in shown.items()
        )
        for name in ("epoch", "started_ms"):  # of one before
            answer = editor.post(
                "/transactions", {"csrf": token, **shown, name: str(row[name] - 1 if row[name] else 7)}
            )
            assert answer.status == 409 and "is over" in answer.words
        assert editor.get("/api/transactions").json["transactions"][0]["state"] == "ongoing"
        answer = editor.post("/transactions", {"csrf": token, **shown})
        assert answer.status == 303
    assert all(row["state"] != "ongoing" for row in editor.get("/api/transactions").json["transactions"])
