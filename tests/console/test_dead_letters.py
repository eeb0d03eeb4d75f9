"""Dead letters in the console: why they died, a dry run, putting them back at a rate, and one with another value."""

from __future__ import annotations

import re

import pytest

import klamm
from klamm.console import redrives
from klamm.console.mask import HIDDEN
from tests.console.conftest import HOSTILE
from tests.console.visitor import Answer, Visitor
from tests.procs import until

PAGE = "/dead-letters/orders.dlq"


def waiting(visitor: Visitor) -> int:
    return int(visitor.get(f"/api{PAGE}").json["waiting"])


def confirm(editor: Visitor, query: str) -> Answer:
    """Send the form that the dry run ends with."""
    form = editor.get(f"{PAGE}?plan=1{query}").text.rpartition('method="post"')[2]
    return editor.post(PAGE, dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)))


def letters_of(store: klamm.Store) -> list[tuple[int, int]]:
    return [(letter.record.partition, letter.record.offset) for letter in store.dead_letters("orders.dlq")]


def latest(store: klamm.Store) -> klamm.Record:
    return [record for record in store.tail("orders", 99) if record.partition == 0][-1]


def test_dead_letters_say_why_they_died(visitor: Visitor) -> None:
    data = visitor.get(f"/api{PAGE}").json
    assert data["waiting"] == 6 and {row["error"] for row in data["letters"]} == {"ValueError"}
    assert HOSTILE in data["letters"][0]["reason"] and data["letters"][0]["origin"] == "orders/0/0"
    assert visitor.get("/api/dead-letters").json["topics"] == [
        {"topic": "orders.dlq", "letters": 6, "errors": {"ValueError": 6}, "problem": None}
    ]
    assert visitor.get(f"/api{PAGE}?error=KeyError").json["waiting"] == 0


def test_a_topic_that_only_has_such_a_name_is_left_out(store: klamm.Store, visitor: Visitor) -> None:
    store.topics.create("other.dlq")
    store.append("other.dlq", b"not a letter", acks=1)
    assert [row["topic"] for row in visitor.get("/api/dead-letters").json["topics"]] == ["orders.dlq"]
    assert visitor.get("/trouble").status == 200 and visitor.get("/dead-letters/other.dlq").status == 400


def test_letters_are_counted_again_when_the_topic_has_changed(store: klamm.Store, visitor: Visitor) -> None:
    assert visitor.console.letters.count("orders.dlq").total() == 6
    store.redrive("orders.dlq", limit=2)
    until(lambda: visitor.console.letters.count("orders.dlq").total() == 4, "they are counted again")


def test_a_dry_run_says_what_a_redrive_would_do_and_does_nothing(store: klamm.Store, visitor: Visitor) -> None:
    plan = visitor.get(f"/api{PAGE}?plan=1&limit=4&rate=2").json["plan"]
    assert (plan["letters"], plan["targets"], plan["takes_ms"], plan["problem"]) == (4, {"orders": 4}, 2000, None)
    assert visitor.get(f"/api{PAGE}?plan=1&error=KeyError").json["plan"]["letters"] == 0
    page = visitor.get(f"{PAGE}?plan=1&to=nowhere")
    assert "Topic 'nowhere' does not exist" in page.words and "Put back" not in page.words
    assert "This console only reads" in visitor.get(f"{PAGE}?plan=1").words
    assert waiting(visitor) == 6 and store["orders"].info().count == 60


def test_letters_that_came_after_the_dry_run_are_not_put_back(store: klamm.Store, editor: Visitor) -> None:
    form = editor.get(f"{PAGE}?plan=1").text.rpartition('method="post"')[2]
    with store.consumer("orders", start={0: 5, 1: 20, 2: 20}, wait=0) as consumer:

        def fail(record: klamm.Record) -> None:
            if record.offset == 5:
                raise KeyError("late")

        consumer.run(fail, workers=1, retries=0, on_error="dead-letter")
    assert waiting(editor) == 7
    editor.post(PAGE, dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)))
    assert [letter.error for letter in store.dead_letters("orders.dlq")] == ["KeyError"]


def test_letters_are_put_back_as_the_form_says(store: klamm.Store, editor: Visitor) -> None:
    store.topics.create("again")
    assert confirm(editor, "&limit=2&to=again").status == 303
    assert waiting(editor) == 4 and len(list(store.tail("again", 9))) == 2
    assert "has put back 2 of 2 letters" in editor.get(PAGE).words
    assert confirm(editor, "&error=ValueError").status == 303
    assert waiting(editor) == 0 and len(list(store.tail("orders", 99))) == 64


def test_a_redrive_at_a_rate_is_shown_while_it_runs_and_stopped(
    store: klamm.Store, editor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "_WAIT_S", 0.0)
    assert confirm(editor, "&rate=3").status == 303
    running = editor.console.redrives.of("orders.dlq")
    assert running is not None and not running.is_over.is_set()
    page = editor.get(PAGE)
    assert re.search(r"Putting back: \d of 6 letters, 3 a second", page.words) and "Dry run" not in page.words
    answer = editor.post(PAGE, {"csrf": editor.csrf(PAGE), "rate": "1"})
    assert answer.status == 409 and "a redrive is running" in answer.words
    editor.post(PAGE, {"csrf": editor.csrf(PAGE), "stop": "1"})
    assert running.is_over.wait(30) and running.error is None
    assert 0 < waiting(editor) < 6 and waiting(editor) == 6 - running.done
    assert f"was stopped after {running.done} of 6 letters" in editor.get(PAGE).words


def test_a_redrive_that_fails_says_why(store: klamm.Store, editor: Visitor) -> None:
    token = editor.csrf(f"{PAGE}?plan=1")
    answer = editor.post(PAGE, {"csrf": token, "to": "nowhere"})
    assert answer.status == 404 and "Topic 'nowhere' does not exist" in answer.words
    assert waiting(editor) == 6
    store.topics.create("small", settings={"max.message.bytes": 1})
    answer = editor.post(PAGE, {"csrf": token, "to": "small"})
    assert answer.status == 400 and waiting(editor) == 6
    assert "The last redrive put back 0 of 6 letters, then:" in editor.get(PAGE).words


def test_one_letter_is_edited_and_put_back(store: klamm.Store, editor: Visitor) -> None:
    partition, offset = letters_of(store)[0]
    address = f"{PAGE}/{partition}/{offset}"
    page = editor.get(address)
    assert "ValueError" in page.words and "orders/0/0" in page.words and page.status == 200
    fields = {"csrf": editor.csrf(address), "kind": "text", "value": '{"n":\r\n 1}'}
    assert editor.post(address, fields).headers["location"] == PAGE
    record = latest(store)
    assert (record.key, record.value, dict(record.headers)["klamm.attempts"]) == (b"k0", b'{"n":\n 1}', b"1")
    assert editor.get(address).status == 404 and waiting(editor) == 5
    answer = editor.post(address, fields)
    assert answer.status == 404 and "it may have been put back" in answer.words


def test_a_letter_is_put_back_elsewhere_as_it_is(store: klamm.Store, editor: Visitor) -> None:
    store.topics.create("again")
    letter = next(iter(store.dead_letters("orders.dlq")))
    address = f"{PAGE}/{letter.record.partition}/{letter.record.offset}"
    form = editor.get(address).text
    (value,) = re.findall(r"<textarea[^>]*>([^<]*)</textarea>", form)
    fields = {"csrf": editor.csrf(address), "kind": "text", "value": value.replace("&quot;", '"'), "to": "again"}
    assert editor.post(address, fields).status == 303
    assert [record.value for record in store.tail("again", 9)] == [letter.record.value]


def test_a_masked_letter_goes_back_as_it_is_and_is_not_edited(store: klamm.Store) -> None:
    masked = Visitor(store, allow_changes=True, mask=("user",))
    letter = next(iter(store.dead_letters("orders.dlq")))
    address = f"{PAGE}/{letter.record.partition}/{letter.record.offset}"
    page = masked.get(address)
    assert HIDDEN in page.words and "<textarea" not in page.text and "at 0" not in page.words
    fields = {"csrf": masked.csrf(address)}
    assert masked.post(address, {**fields, "value": "x"}).status == 403
    assert masked.post(address, fields).status == 303
    assert latest(store).value == letter.record.value


def test_a_console_that_only_reads_puts_nothing_back(store: klamm.Store, visitor: Visitor) -> None:
    partition, offset = letters_of(store)[0]
    for address in (PAGE, f"{PAGE}/{partition}/{offset}"):
        assert 'method="post"' not in visitor.get(address).text
        assert visitor.post(address, {"csrf": "x"}).status == 403
    assert waiting(visitor) == 6
