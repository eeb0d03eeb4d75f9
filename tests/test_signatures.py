"""Signatures in docs/reference/api.md are those of the code: names, defaults, and which are by name only."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import klamm
import klamm.testing

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text()
STUB = ast.parse((ROOT / "src" / "klamm" / "batch" / "_kernel.pyi").read_text())

OWNERS: dict[str, Any] = {
    "klamm": klamm,
    "store.topics": klamm.Topics,
    "store.groups": klamm.Groups,
    "store.transactions": klamm.Transactions,
    "store": klamm.Store,
    "topic": klamm.Topic,
    "producer": klamm.Producer,
    "consumer": klamm.Consumer,
    "tx": klamm.Transaction,
    "delivery": klamm.Delivery,
    "table": klamm.Table,
    "pipe": klamm.Pipe,
    "offsets": klamm.SqlOffsets,
    "testing": klamm.testing,
}

REQUIRED = object()


class Parameter(NamedTuple):
    default: Any
    by_name: bool


class Documented(NamedTuple):
    name: str
    arguments: str
    text: str
    """What the page says below."""


def documented() -> list[Documented]:
    """The calls with which a line of the page begins, or a row of a table."""
    page = PAGE.partition("\n## `klamm.aio`\n")[0]
    calls = rf"`((?:{'|'.join(OWNERS)})\.\w+)\(([^`]*)\)`"
    found = []
    for row in re.findall(r"^\| (`.*)$", page, re.MULTILINE):
        found += [Documented(name, arguments, "") for name, arguments in re.findall(calls, row.partition(" | ")[0])]
    for line, text in re.findall(r"^(`.*)\n((?:.+\n|\n(?=: ))*)", page, re.MULTILINE):
        found += [Documented(name, arguments, text) for name, arguments in re.findall(calls, line)]
    return found


def parameters_of(arguments: ast.arguments) -> Iterator[tuple[str, Parameter]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    for argument, default in zip(positional, defaults, strict=True):
        yield argument.arg, Parameter(value_of(default), by_name=False)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg, Parameter(value_of(default), by_name=True)


def value_of(default: ast.expr | None) -> Any:
    return REQUIRED if default is None else ast.literal_eval(default)


def on_the_page(call: Documented) -> dict[str, Parameter]:
    written = call.arguments.replace("…", "**more")
    function = ast.parse(f"def call({written}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    parameters = dict(parameters_of(function.args))
    if "…" in call.arguments:  # the others are in the text
        for name, default in re.findall(r"`(\w+)=([^`]+)`", call.text):
            parameters[name] = Parameter(ast.literal_eval(default), by_name=True)
    return parameters


def in_the_stub(owner: type, name: str) -> dict[str, Parameter]:
    """Native code has no signature, and a stub that mypy knows."""
    classes = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
    bases = [classes[base.__name__] for base in owner.__mro__ if base.__name__ in classes]
    function = next(
        node for base in bases for node in base.body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return {parameter: value for parameter, value in parameters_of(function.args) if parameter != "self"}


def in_python(call: Callable[..., Any]) -> dict[str, Parameter]:
    return {
        parameter.name: Parameter(
            REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default,
            by_name=parameter.kind is inspect.Parameter.KEYWORD_ONLY,
        )
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name != "self"
        and parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }


def in_the_code(name: str) -> dict[str, Parameter]:
    noun, _, verb = name.rpartition(".")
    member = getattr(OWNERS[noun], verb)
    try:
        parameters = in_python(member)
    except ValueError:
        return in_the_stub(OWNERS[noun], verb)
    return parameters


@pytest.mark.parametrize("call", documented(), ids=lambda call: call.name)
def test_a_signature_on_the_page_is_that_of_the_code(call: Documented) -> None:
    page, code = on_the_page(call), in_the_code(call.name)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD and each.name != "unknown" for each in signature_of(call.name)):
        page = {name: value for name, value in page.items() if name in code}
    assert page == code


def signature_of(name: str) -> list[inspect.Parameter]:
    noun, _, verb = name.rpartition(".")
    try:
        return list(inspect.signature(getattr(OWNERS[noun], verb)).parameters.values())
    except ValueError:
        return []


def methods_of(owner: Any) -> set[str]:
    if inspect.ismodule(owner):
        return {name for name in owner.__all__ if inspect.isfunction(getattr(owner, name))}
    return {name for name in dir(owner) if not name.startswith("_") and inspect.isroutine(getattr(owner, name))}


@pytest.mark.parametrize("noun", OWNERS)
def test_the_page_has_a_signature_of_every_method(noun: str) -> None:
    names = {call.name for call in documented()}
    methods = {f"{noun}.{name}" for name in methods_of(OWNERS[noun])}
    assert sorted(methods - names) == []
    assert methods and len(names) > 60
