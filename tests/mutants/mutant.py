"""A mutant: Klamm with a line or two broken on purpose, and the tests that must fail because of it.

A promise without a test that fails when it is broken is a hope. The modules beside this one list mutants as `MUTANTS`;
`all_mutants` collects them. test_registry.py checks in milliseconds that each still applies; run.py runs them, and
writes into docs/internals/mutants.md which test noticed each. So a new one is added with `make mutants ARGS="-k name"`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NOT_AREAS = {"mutant", "run", "report"}
"""Modules of this package that list no mutants."""


Change = tuple[str, str, str]
"""A file, text that is in it exactly once, and the text that takes its place."""


class Mutant(NamedTuple):
    name: str
    """What is broken, as a sentence about the program."""
    breaks: str
    """The promise it breaks: its number in docs/internals/promises.md, or the document or module that makes it."""
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    """What pytest runs: files, folders or node ids, as few as notice it for certain."""

    @property
    def files(self) -> set[str]:
        return {file for file, _, _ in self.changes}

    @property
    def is_native(self) -> bool:
        """Return whether a change only shows in a compiled module."""
        return any(not file.endswith(".py") for file in self.files)

    def broken(self, root: Path) -> dict[str, str]:
        """Return each file it changes with its broken text. Raise ValueError if a change does not apply."""
        texts = {file: (root / file).read_text() for file in self.files}
        for file, old, new in self.changes:
            count = texts[file].count(old)
            if count != 1 or old == new:
                raise ValueError(f"{self.name}: {file}: {old!r} is there {count} times, expected once")
            texts[file] = texts[file].replace(old, new)
        return texts

    def missing_tests(self, root: Path) -> list[str]:
        """Return those of `tests` that are neither a file, a folder nor a function of a file."""
        return [test for test in self.tests if not has_test(root, test)]


def areas() -> list[str]:
    """Return the names of the modules of this package that list mutants."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    return [name for name in names if name not in NOT_AREAS and not name.startswith("test_")]


def all_mutants() -> list[Mutant]:
    return [mutant for area in areas() for mutant in importlib.import_module(f"tests.mutants.{area}").MUTANTS]


def has_test(root: Path, test: str) -> bool:
    """Return whether `test` exists: a path, path::function or path::Class::function, maybe with [parameters]."""
    path, *parts = test.split("[", 1)[0].split("::")
    if not parts:
        return (root / path).exists()
    return (root / path).is_file() and "::".join(parts) in _tests_of(root / path)


@functools.cache
def _tests_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):  # a state machine of hypothesis: TestX = Machine.TestCase
            names |= {f"{each.id}::runTest" for each in node.targets if isinstance(each, ast.Name)}
    return names


def extensions_of(files: Iterable[str]) -> list[str]:
    """Return the native modules, as pyproject.toml names them, that are built from any of `files`."""
    changed = set(files)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    return [each["name"] for each in built if changed & {*each["sources"], *each["depends"]}]
