"""Options and choices that are written down more than once: the copies agree.

A call that makes something has the options of what it makes. They are written out in its first overload, for people and
editors, and in a TypedDict, for the other overloads; and a call on a topic's handle has those of the call on the store.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, ForwardRef, NamedTuple, get_overloads

import pytest

import klamm
from klamm import aio, choices
from klamm.api import call_options, functions
from klamm.arrow.scan import Scan
from klamm.client.consume import consumer_options
from klamm.client.groups.group_session import GroupSession
from klamm.client.produce import producer_options
from klamm.client.work.run_options import RunOptions, RunSettings

NARROWED = {"value", "key", "records", "serde", "key_serde", "form", "on_bad_record", "acks"}
"""What overloads are chosen by: each says more about them than the call does."""


class Option(NamedTuple):
    default: object
    annotation: str


def options(*calls: Callable[..., Any], without: Iterable[str] = ()) -> dict[str, Option]:
    """Return what can be said by name, and need not be."""
    return {
        name: Option(each.default, str(each.annotation))
        for call in calls
        for name, each in inspect.signature(call).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
        and each.default is not inspect.Parameter.empty
        and name not in {"store", *without}
    }


def alike(given: dict[str, Option]) -> dict[str, Option]:
    """Leave out what the types of overloads differ in; their defaults are looked at elsewhere."""
    return {name: Option(each.default, "") if name in NARROWED else each for name, each in given.items()}


MADE_BY: dict[str, tuple[Callable[..., Any], dict[str, Option]]] = {
    "consumer": (klamm.Store.consumer, options(klamm.Consumer.__init__, GroupSession.__init__)),
    "topic.consumer": (
        klamm.Topic.consumer,
        options(klamm.Consumer.__init__, GroupSession.__init__, without=["pattern"]),
    ),
    "producer": (klamm.Store.producer, options(klamm.Producer.__init__)),
    "transaction": (klamm.Store.transaction, options(klamm.Transaction.__init__)),
    "consumer.transaction": (klamm.Consumer.transaction, options(klamm.Transaction.__init__)),
    "pipe": (klamm.Store.pipe, options(klamm.Pipe.__init__)),
    "scan": (klamm.Store.scan, options(Scan.__init__)),
    "topic.scan": (klamm.Topic.scan, options(Scan.__init__)),
    "open": (klamm.open, options(klamm.Store.__init__)),
    "aio.consumer": (aio.Store.consumer, options(klamm.Consumer.__init__, GroupSession.__init__)),
    "aio.producer": (aio.Store.producer, options(klamm.Producer.__init__)),
    "aio.transaction": (aio.Store.transaction, options(klamm.Transaction.__init__)),
    "aio.consumer.transaction": (aio.Consumer.transaction, options(klamm.Transaction.__init__)),
    "aio.pipe": (aio.Store.pipe, options(klamm.Pipe.__init__)),
    "aio.scan": (aio.Store.scan, options(Scan.__init__)),
    "aio.consumer.run": (aio.Consumer.run, options(klamm.Consumer.run)),
}


@pytest.mark.parametrize("name", MADE_BY)
def test_a_call_has_the_options_of_what_it_makes_with_their_defaults_and_types(name: str) -> None:
    call, made = MADE_BY[name]
    assert options(call, without=["consumers"]) == made and made


def test_consumer_run_has_the_options_of_a_run() -> None:
    defaults = {name: each.default for name, each in options(RunSettings.__init__, without=["workers"]).items()}
    written = options(klamm.Consumer.run)
    assert {name: each.default for name, each in written.items()} == defaults
    assert {name: each.annotation for name, each in written.items()} == types_of(RunOptions)
    assert inspect.signature(klamm.Consumer.run).parameters["workers"].default == RunSettings.workers


OVERLOADED: dict[str, Callable[..., Any]] = {
    "open": functions.open,
    **{f"store.{name}": getattr(klamm.Store, name) for name in ("append", "append_many", "producer", "transaction")},
    **{f"store.{name}": getattr(klamm.Store, name) for name in ("consumer", "tail", "table")},
    **{f"topic.{name}": getattr(klamm.Topic, name) for name in ("append", "append_many", "consumer", "tail", "table")},
}


@pytest.mark.parametrize("name", OVERLOADED)
def test_the_first_overload_is_the_whole_signature(name: str) -> None:
    call = OVERLOADED[name]
    first, *others = get_overloads(call)
    assert list(inspect.signature(first).parameters) == [
        name
        for name, each in inspect.signature(call).parameters.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    assert alike(options(first)) == alike(options(call))
    assert len(others) >= 4


def types_of(options: Any) -> dict[str, str]:
    return {
        name: each.__forward_arg__ if isinstance(each, ForwardRef) else str(each)
        for name, each in options.__annotations__.items()
    }


@pytest.mark.parametrize("name", OVERLOADED)
def test_the_other_overloads_take_the_same_options(name: str) -> None:
    call = OVERLOADED[name]
    for overload in get_overloads(call):
        parameters = inspect.signature(overload).parameters
        passed_on = [each.annotation for each in parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
        taken = {each: Option(None, str(parameters[each].annotation)) for each in parameters if each != "options"}
        for named in passed_on:
            (typed_dict,) = re.fullmatch(r"Unpack\[(\w+)\]", named).groups()  # type: ignore[union-attr]
            (found,) = {
                getattr(module, typed_dict)
                for module in (call_options, consumer_options, producer_options)
                if hasattr(module, typed_dict)
            }
            taken |= {each: Option(None, annotation) for each, annotation in types_of(found).items()}
        expected = inspect.signature(call).parameters
        assert taken.keys() == {each for each in expected if each != "unknown"}
        for each in taken.keys() - NARROWED - {"self"}:
            assert taken[each].annotation == str(expected[each].annotation), each


TWINS = ("append", "append_many", "consumer", "tail", "table")


@pytest.mark.parametrize("name", TWINS)
def test_a_handle_has_the_overloads_of_the_store_but_for_the_topic(name: str) -> None:
    assert written(getattr(klamm.Topic, name)) == written(getattr(klamm.Store, name))


@pytest.mark.parametrize("name", [*TWINS, "producer", "transaction"])
def test_klamm_aio_has_the_same_overloads(name: str) -> None:
    for sync, other in [(klamm.Store, aio.Store), (klamm.Topic, aio.Topic)]:
        if hasattr(sync, name):
            assert written(getattr(other, name)) == written(getattr(sync, name))


def written(call: Callable[..., Any]) -> list[str]:
    """Return the overloads as text, without what differs on purpose."""
    texts = []
    for overload in get_overloads(call):
        signature = inspect.signature(overload)
        parameters = [
            f"{each.name}: {each.annotation} = {each.default}"
            for each in signature.parameters.values()
            if each.name not in ("topic", "topics", "pattern")
        ]
        returned = re.sub(r"^Opener\[(.*)\]$", r"\1", str(signature.return_annotation))
        text = f"{parameters} {returned}"
        text = re.sub(r"\b(Appends|Reads|TopicReads|Topic)\[", "Self[", text)
        texts.append(text.replace("TopicConsumerOptions", "ConsumerOptions").replace("AsyncIterator", "Iterator"))
    assert len(texts) >= 6
    return texts


# ---- choices


def calls(store: klamm.Store) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """By the name of the choice: its type, and a call that takes a value of it."""
    store.topics.create("orders", exist_ok=True)
    store.topics.create("invoices", exist_ok=True)
    handle: Any = store["orders"]
    made: Any = store

    def run(**given: Any) -> None:
        with made.consumer("orders", group="g", wait=0) as consumer:
            consumer.run(print, workers=1, **given)

    return {
        "Acks": (choices.Acks, lambda value: made.append("orders", b"x", acks=value)),
        "Compression": (choices.Compression, lambda value: made.append_many("orders", [b"x"], compression=value)),
        "SerdeName": (choices.SerdeName, lambda value: made.consumer("orders", serde=value).close()),
        "Form": (choices.Form, lambda value: handle.consumer(form=value).close()),
        "Isolation": (choices.Isolation, lambda value: handle.consumer(isolation=value).close()),
        "OffsetReset": (choices.OffsetReset, lambda value: handle.consumer(auto_offset_reset=value).close()),
        "BadRecordPolicy": (choices.BadRecordPolicy, lambda value: handle.consumer(on_bad_record=value).close()),
        "Column": (choices.Column, lambda value: handle.scan(columns=[value]).to_table()),
        "RunErrorPolicy": (choices.RunErrorPolicy, lambda value: run(on_error=value)),
        "RunOrder": (choices.RunOrder, lambda value: run(order=value)),
        "PipeErrorPolicy": (
            choices.PipeErrorPolicy,
            lambda value: made.pipe("orders", print, to="invoices", on_error=value).close(),
        ),
    }


RESULTS = {"GroupState", "LockState"}
PARTS_OF = {"AcksWithOffset": choices.Acks, "TypedBadRecordPolicy": choices.BadRecordPolicy}


def test_what_a_choice_names_is_taken_and_nothing_else(store: klamm.Store) -> None:
    for name, (choice, call) in calls(store).items():
        for value in choices.options_of(choice):
            call(value)
        with pytest.raises((klamm.InvalidSetting, TypeError)):
            call("none of them")
        assert name in klamm.__all__


def test_every_choice_is_looked_at(store: klamm.Store) -> None:
    named = {name for name in choices.__all__ if name != "options_of"}
    assert named == calls(store).keys() | RESULTS | PARTS_OF.keys()
    for name, whole in PARTS_OF.items():
        assert set(choices.options_of(getattr(choices, name))) < set(choices.options_of(whole))


def test_the_codecs_are_in_the_order_of_their_numbers() -> None:
    from klamm.batch.codecs import CODECS

    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def test_a_generic_class_can_be_subscribed_where_annotations_are_evaluated() -> None:
    generic: Any
    for generic in (klamm.Record, klamm.Store, klamm.Topic, klamm.Topics, klamm.Producer, klamm.Transaction):
        assert generic[str, int].__args__ == (str, int)
    for generic in (aio.Store, aio.Topic, aio.Topics, aio.Producer, aio.Transaction, aio.Table):
        assert generic[str, int].__args__ == (str, int)
    assert klamm.Table[str, int].__args__ == (str, int)  # type: ignore[attr-defined]
    assert klamm.Batch[int].__args__ == klamm.Consumer[int].__args__ == (int,)  # type: ignore[attr-defined]
    assert isinstance(klamm.Record("t", 0, 0, 0, b"", b""), klamm.Record)
