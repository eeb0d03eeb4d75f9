"""klamm.aio has everything that klamm has: public names and parameters are compared; each difference has a reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import klamm
from klamm import aio

PAIRS: list[tuple[type, type]] = [
    (klamm.Store, aio.Store),
    (klamm.Topic, aio.Topic),
    (klamm.Topics, aio.Topics),
    (klamm.Groups, aio.Groups),
    (klamm.Transactions, aio.Transactions),
    (klamm.Producer, aio.Producer),
    (klamm.Consumer, aio.Consumer),
    (klamm.Transaction, aio.Transaction),
    (klamm.Table, aio.Table),
    (klamm.Scan, aio.Scan),
    (klamm.Pipe, aio.Pipe),
]

NOT_IN_AIO = {
    "Consumer.commit_async": "a commit is awaited, or made a task",
    "Scan.reader": "pyarrow reads it, and blocks: store.sync.scan has it",
    "klamm.copy": "a job, which takes a thread: asyncio.to_thread(klamm.copy, …)",
    "klamm.server": "it runs in threads of its own, and its calls return at once",
    "klamm.testing": "it is for tests, which may block",
}
ONLY_IN_AIO = {
    "Store.sync": "the way to what blocks",
    "Producer.result": "delivery.result() blocks",
}
# Of what Python asks by special methods, those that cannot be awaited.
NOT_SPECIAL = {
    "Store.__contains__": "`in` cannot be awaited: [name async for name in store]",
    "Store.__len__": "`len` cannot be awaited",
    "Topics.__contains__": "`in` cannot be awaited",
    "Topics.__len__": "`len` cannot be awaited",
    "Groups.__contains__": "`in` cannot be awaited",
    "Groups.__len__": "`len` cannot be awaited",
    "Groups.__getitem__": "groups.describe is awaited",
    "Transactions.__len__": "`len` cannot be awaited",
    "Table.__contains__": "`in` cannot be awaited: table.get",
    "Table.__len__": "`len` cannot be awaited",
    "Table.__getitem__": "table.get is awaited",
    "Table.__setitem__": "table.put is awaited",
    "Table.__delitem__": "table.delete is awaited",
    "Scan.__arrow_c_stream__": "its readers block: store.sync.scan has it",
}
DIFFERENT_PARAMETERS = {"klamm.open": {"threads"}}
SPECIAL = {
    "__iter__": "__aiter__",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__contains__": None,
    "__len__": None,
    "__getitem__": "__getitem__",
    "__setitem__": None,
    "__delitem__": None,
    "__arrow_c_stream__": None,
}


def public(owner: type) -> set[str]:
    return {f"{owner.__name__}.{name}" for name in [*dir(owner), *annotated(owner)] if not name.startswith("_")}


def annotated(owner: type) -> Iterator[str]:
    """Attributes that are set by __init__: those of slots are in dir, those of instances are read from the source."""
    source = inspect.getsource(vars(owner)["__init__"])
    for line in source.splitlines():
        name, _, _ = line.strip().removeprefix("self.").partition(" ")
        if line.strip().startswith("self.") and name.rstrip(":").isidentifier():
            yield name.rstrip(":")


def test_every_public_name_is_in_both_or_its_absence_has_a_reason() -> None:
    both = {name for sync, other in PAIRS for name in public(sync) & public(other)}
    in_klamm = {name for sync, _ in PAIRS for name in public(sync)}
    in_aio = {name for _, other in PAIRS for name in public(other)}
    assert sorted(in_klamm - both) == sorted(name for name in NOT_IN_AIO if not name.startswith("klamm."))
    assert sorted(in_aio - both) == sorted(ONLY_IN_AIO)


def test_every_class_that_has_calls_has_a_twin_and_so_has_every_function() -> None:
    assert sorted(aio.__all__) == sorted([other.__name__ for _, other in PAIRS] + ["check", "open"])
    functions = {name for name in klamm.__all__ if inspect.isroutine(getattr(klamm, name))} - {"to", "last"}
    modules = {name for name in klamm.__all__ if inspect.ismodule(getattr(klamm, name))} - {"aio"}
    assert (functions | modules) - set(aio.__all__) == {
        name.partition(".")[2] for name in NOT_IN_AIO if name.startswith("klamm.")
    }


def test_every_special_method_has_an_asynchronous_one_or_a_reason() -> None:
    missing = {
        f"{sync.__name__}.{name}"
        for sync, other in PAIRS
        for name, twin in SPECIAL.items()
        if hasattr(sync, name) and not (twin is not None and hasattr(other, twin))
    }
    assert sorted(missing) == sorted(NOT_SPECIAL)


def parameters(call: object) -> dict[str, object] | None:
    """Names, with defaults and how they are given; None if native code has no signature."""
    try:
        signature = inspect.signature(call)  # type: ignore[arg-type]
    except ValueError:
        return None
    return {
        name: (parameter.default, parameter.kind)
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


CALLS = [
    *((f"klamm.{name}", getattr(klamm, name), getattr(aio, name)) for name in ("open", "check")),
    *(
        (name, getattr(sync, name.partition(".")[2]), getattr(other, name.partition(".")[2]))
        for sync, other in PAIRS
        for name in sorted(public(sync) & public(other))
        if inspect.isfunction(inspect.unwrap(getattr(sync, name.partition(".")[2], object)))
    ),
]


@pytest.mark.parametrize(("name", "sync", "other"), CALLS, ids=[name for name, _, _ in CALLS])
def test_a_call_takes_the_same_parameters(name: str, sync: object, other: object) -> None:
    mine, theirs = parameters(other), parameters(sync)
    if mine is None or theirs is None:
        return
    passes_on = any(
        each.kind is inspect.Parameter.VAR_KEYWORD
        for each in inspect.signature(other).parameters.values()  # type: ignore[arg-type]
    )
    mine = {key: value for key, value in mine.items() if key not in DIFFERENT_PARAMETERS.get(name, ())}
    assert theirs.items() >= mine.items() if passes_on else theirs == mine
    assert len(CALLS) > 70
