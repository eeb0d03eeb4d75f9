"""docs/reference/first-lines.md: what people type first, each line run, and what comes of it compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.other_names import NAMES

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "first-lines.md").read_text()
PYTHON, SHELL = re.findall(r"^## (?:Python|Shell)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


def rows(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `(.+)` \| `(.+)` \|$", section, re.MULTILINE)


def fits(found: str, written: str) -> bool:
    """Whether it is what the page says; "…" stands for whatever comes there."""
    return re.fullmatch(".*".join(map(re.escape, written.split("…"))), found, re.DOTALL) is not None


def is_expression(line: str) -> bool:
    try:
        compile(line, "line", "eval")
    except SyntaxError:
        return False
    return True


@pytest.fixture
def filled(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders")
    store.topics.create("users")
    store.append_many("orders", [(b"user-%d" % n, b'{"n": %d}' % n) for n in range(20)])
    store.append("users", b"1", key=b"ada")
    return store


@pytest.fixture
def names(filled: klamm.Store) -> Iterator[dict[str, Any]]:
    """What the lines of Python use."""
    with filled.consumer("orders", group="billing", wait=0) as consumer, filled.table("users") as users:
        batch = consumer.poll()
        yield {
            "klamm": klamm,
            "timedelta": timedelta,
            "store": filled,
            "consumer": consumer,
            "users": users,
            "batch": batch,
            "record": batch[0],
        }


@pytest.mark.parametrize(("typed", "written"), rows(PYTHON), ids=[typed for typed, _ in rows(PYTHON)])
def test_a_line_of_python_does_what_the_page_says(names: dict[str, Any], typed: str, written: str) -> None:
    for package in ("pyarrow", "duckdb", "pandas", "polars", "rocksdict"):
        pytest.importorskip(package)
    *statements, last = typed.split("; ")
    try:
        for statement in statements:
            exec(statement, names)
        found = repr(eval(last, names)) if is_expression(last) else str(exec(last, names))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    assert fits(found, written), found


@pytest.mark.parametrize(("typed", "written"), rows(SHELL), ids=[typed for typed, _ in rows(SHELL)])
def test_a_line_of_a_shell_does_what_the_page_says(filled: klamm.Store, typed: str, written: str) -> None:
    program, *arguments = shlex.split(typed)
    assert program == "klamm"
    command = [sys.executable, "-m", "klamm", *arguments]
    environment = {**os.environ, "KLAMM_STORE": filled.path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    found = (done.stdout or done.stderr).strip()
    assert fits(found, written), found
    assert (done.returncode == 0) is not written.startswith("klamm: "), done.stderr


def test_the_page_has_a_line_for_every_call_that_people_begin_with() -> None:
    assert len(rows(PYTHON)) > 50 and len(rows(SHELL)) > 10
    assert PAGE.count("\n| `") == len(rows(PYTHON)) + len(rows(SHELL))
    assert not fits("ab", "a") and fits("abc", "a…c") and not fits("abcd", "a…c")


def test_what_is_said_for_a_name_of_another_library_is_there() -> None:
    """And the name itself is not: else nobody would be told."""
    from klamm.arrow.scan import Scan
    from klamm.arrow.sql_result import SqlResult

    kinds: dict[str, Any] = {name: getattr(klamm, name) for name in NAMES if hasattr(klamm, name)}
    kinds |= {"Scan": Scan, "SqlResult": SqlResult}
    assert kinds.keys() == NAMES.keys()
    variables = {kind.lower(): kind for kind in kinds} | {"tx": "Transaction", "result": "SqlResult"}
    for kind, names in NAMES.items():
        for name, use in names.items():
            assert not hasattr(kinds[kind], name), (kind, name)
            for variable, attribute in re.findall(r"\b([a-z]+)\.(\w+)", use):
                owner = kinds[variables.get(variable, "Store")]
                assert hasattr(owner, attribute), use


def test_an_error_of_a_property_is_not_hidden(store: klamm.Store) -> None:
    class Mine(klamm.Store):
        @property
        def broken(self) -> int:
            return int(self.path.nope)  # type: ignore[attr-defined]

    with Mine(store.path) as mine, pytest.raises(AttributeError, match="'str' object has no attribute 'nope'"):
        print(mine.broken)
    with pytest.raises(AttributeError, match=r"'Store' object has no attribute 'nope'$") as raised:
        store.nope  # type: ignore[attr-defined]  # noqa: B018
    assert raised.value.name == "nope" and raised.value.obj is store
