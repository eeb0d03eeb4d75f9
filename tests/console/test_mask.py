"""`--mask`: MSK1 to MSK3 of console/mask.py. What is hidden is in no response of any view."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm.batch import Record
from klamm.console.app import PAGES
from klamm.console.mask import Mask
from klamm.console.tail import read_growth
from klamm.errors import InvalidSetting
from klamm.where import Where
from tests.console.visitor import Visitor

SECRET = "s3cr3t-4711"


def shown(value: Any, *fields: str) -> Any:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    record = Mask(fields)(Record("t", 0, 0, 0, None, data))
    return record.value if isinstance(value, bytes) else json.loads(record.value)


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        ({"pin": 1, "n": 2}, "pin", {"pin": "(masked)", "n": 2}),
        ({"a": [{"b": {"pin": [1, 2]}}]}, "pin", {"a": [{"b": {"pin": "(masked)"}}]}),
        ({"pin": 1, "user": {"pin": 2}}, "$.user.pin", {"pin": 1, "user": {"pin": "(masked)"}}),
        ({"users": [{"pin": 1}, {"pin": 2}]}, "$.users.pin", {"users": [{"pin": "(masked)"}, {"pin": "(masked)"}]}),
        ({"users": [{"pin": 1}, {"pin": 2}]}, "$.users[1].pin", {"users": [{"pin": 1}, {"pin": "(masked)"}]}),
        ([1, 2, 3], "$[1]", [1, "(masked)", 3]),
        ({"inner": '{"pin": 1}'}, "pin", {"inner": '{"pin": "(masked)"}'}),
        ({"inner": '{"pin": 1'}, "pin", {"inner": "(masked)"}),
        ({"inner": '{"pin": 1}'}, "$.user.pin", {"inner": '{"pin": "(masked)"}'}),
        ("pin", "pin", "pin"),
    ],
)
def test_fields_are_hidden_by_name_and_by_path(value: Any, field: str, expected: Any) -> None:
    assert shown(value, field) == expected


def test_an_escaped_or_repeated_name_hides_nothing_less() -> None:
    assert b"77" not in shown(b'{"\\u0070in": 77, "pin": 77}', "pin")
    assert b"77" not in shown(b'{"pin": 77, "pin": 1}', "pin")


def test_json_with_a_name_twice_is_hidden_wherever_it_is() -> None:
    """A parser keeps one of the two: the other one must not be shown."""
    twice = b'{"user": {"pin": 77}, "user": {}}'
    assert shown(twice, "pin") == shown(twice, "$.user.pin") == b"(masked: not JSON)"
    assert shown({"inner": twice.decode(), "n": 1}, "pin") == {"inner": "(masked)", "n": 1}
    deep = b"[" * 100_000
    masked = Mask(["pin"])(Record("t", 0, 0, 0, twice, b"{}", [("h", twice), ("deep", deep), ("x", b"y")]))
    assert masked.key == b"(masked)"
    assert list(masked.headers) == [("h", b"(masked)"), ("deep", b"(masked)"), ("x", b"y")]


@pytest.mark.parametrize("data", [b"\xff\xfe77", b"pin=77", b'{"pin": 77', b'{"pin": 77}{"pin": 77}', b"[" * 100_000])
def test_a_value_that_is_not_json_is_hidden_whole(data: bytes) -> None:
    assert shown(data, "pin") == b"(masked: not JSON)"


def test_a_record_without_such_a_field_stays_byte_for_byte() -> None:
    record = Record("t", 0, 0, 0, b"key", b'{ "n":1.0e3 }', [("h", b"x")])
    assert Mask(["pin"])(record) is record and Mask()(record) is record and not Mask()


def test_keys_and_headers_are_masked_too() -> None:
    record = Record("t", 0, 0, 0, b'{"pin": 1}', None, [("pin", b"77"), ("h", b'{"pin": 77}'), ("x", b"pin")])
    masked = Mask(["pin"])(record)
    assert masked.value is None and masked.key == b'{"pin": "(masked)"}'
    assert list(masked.headers) == [("pin", b"(masked)"), ("h", b'{"pin": "(masked)"}'), ("x", b"pin")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["pin", "a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_whatever_is_below_a_masked_name_is_gone_and_the_rest_is_there(value: Any) -> None:
    def expected(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: "(masked)" if name == "pin" else expected(inner) for name, inner in part.items()}
        return [expected(item) for item in part] if isinstance(part, list) else part

    assert shown(value, "pin") == expected(value)


@pytest.mark.parametrize("field", ["", "$", "$.a b", "$..x"])
def test_a_mask_that_means_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidSetting):
        Mask([field])


# ---- in every view


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Store]:
    """A topic whose values hold a secret, a dead letter of it that quotes it, and a group."""
    with klamm.open(tmp_path_factory.mktemp("masked") / "events") as opened:
        opened.topics.create("orders")
        for n in range(3):
            value = json.dumps({"n": n, "user": {"pin": SECRET}}).encode()
            opened.append("orders", value, key=b"k", headers={"pin": SECRET}, acks=1)
        opened.append("orders", f"pin={SECRET}".encode(), acks=1)

        def fail(record: klamm.Record) -> None:
            raise ValueError(f"cannot use {record.value!r}")

        with opened.consumer("orders", group="mails", wait=0) as consumer:
            consumer.run(fail, workers=1, retries=0, on_error="dead-letter")
        yield opened


@pytest.fixture(scope="module")
def masked(store: klamm.Store) -> Visitor:
    return Visitor(store, store.path, mask=("pin",), allow_changes=True)


def views() -> list[str]:
    """Each page of the console, of a topic with secrets and of its dead letters."""
    addresses = []
    for page in PAGES:
        path = page.path.replace("{partition}", "0").replace("{offset}", "1")
        for topic in ("orders", "orders.dlq") if "{topic}" in path else ("",):
            addresses.append(path.replace("{topic}", topic))
    return [*addresses, "/topics/orders?view=hex", "/topics/orders/produce?like=0/1", "/groups/show?group=mails"]


@pytest.mark.parametrize("address", views())
def test_no_view_holds_what_is_masked(store: klamm.Store, masked: Visitor, address: str) -> None:
    api = "/api/overview" if address == "/" else f"/api{address}"
    saved = address + ("&" if "?" in address else "?") + "save=1"
    for asked in (address, api, saved):
        body = masked.get(asked).text
        assert SECRET not in body and SECRET.encode().hex(" ") not in body, asked


def test_the_same_views_hold_it_without_a_mask(store: klamm.Store) -> None:
    open_visitor = Visitor(store, store.path)
    for address in ("/topics/orders", "/topics/orders/0/1", "/dead-letters/orders.dlq", "/api/topics/orders"):
        assert SECRET in open_visitor.get(address).text


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_export_does_not_hold_it(masked: Visitor, form: str) -> None:
    answer = masked.get(f"/topics/orders/export?format={form}")
    assert answer.status == 200 and SECRET not in answer.text and answer.text.count("(masked)") >= 3


def test_an_export_as_parquet_does_not_hold_it(masked: Visitor) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answer = masked.get("/topics/orders/export?format=parquet")
    rows = parquet.read_table(io.BytesIO(answer.body)).to_pylist()
    assert len(rows) == 4 and SECRET not in repr(rows) and rows[0]["headers"] == [{"key": "pin", "value": b"(masked)"}]


@pytest.mark.parametrize("query", [f"contains={SECRET}", f"where=%24.user.pin+%3D+{SECRET}", f"header=pin%3D{SECRET}"])
def test_no_filter_finds_a_record_by_what_is_masked(masked: Visitor, query: str) -> None:
    assert masked.get(f"/api/topics/orders?{query}").json["records"] == []


def test_what_a_pipeline_ended_with_is_hidden(store: klamm.Store) -> None:
    partition = {"topic": "orders", "partition": 0, "position": 1, "end": 4, "lag": 3}
    row: dict[str, Any] = {
        "name": "p",
        "pipeline": "mine",
        "state": "failed",
        "topics": ["orders"],
        "target": None,
        "lag": 3,
    }
    row |= {"batches": 1, "error": f"cannot use {SECRET}", "directory": "nowhere", "partitions": [partition]}
    row |= {"durations": [], "records_per_s": None}
    for mask in ((), ("pin",)):
        visitor = Visitor(store, store.path, mask=mask)
        visitor.console.__dict__["children"] = SimpleNamespace(run=lambda *_: [row])
        for address in ("/pipelines", "/api/pipelines", "/pipelines/show?name=p", "/api/pipelines/show?name=p"):
            answer = visitor.get(address)
            assert answer.status == 200 and (SECRET in answer.text) == (not mask), address


def test_a_follower_does_not_see_it(masked: Visitor) -> None:
    from klamm.console.context import Visit

    visit = Visit("/topics/orders", {"topic": "orders"})
    growth = read_growth(masked.console, visit, Where("earliest"))
    assert len(growth.records) == 4 and SECRET not in repr([record.value for record in growth.records])


def test_a_masked_record_is_not_sent_again_without_its_fields(masked: Visitor) -> None:
    answer = masked.get("/topics/orders/produce?like=0/1")
    assert answer.status == 403 and "masked" in answer.words
    assert "Edit and send again" not in masked.get("/topics/orders/0/1").words
