"""Every mutant still applies, and the tests that must notice it are there. `make mutants` runs them."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import report
from tests.mutants.mutant import ROOT, Mutant, all_mutants, extensions_of, has_test

MUTANTS = all_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_names_tests_that_exist(mutant: Mutant) -> None:
    mutant.broken(ROOT)
    assert mutant.tests
    assert mutant.missing_tests(ROOT) == []
    assert mutant.breaks
    assert not mutant.is_native or extensions_of(mutant.files)


def test_names_of_mutants_are_unique() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []


def test_a_test_that_was_renamed_is_missing() -> None:
    assert has_test(ROOT, "tests/mutants/test_registry.py::test_a_test_that_was_renamed_is_missing")
    assert has_test(ROOT, "tests/mutants/test_registry.py::test_names_of_mutants_are_unique[1-2]")
    assert has_test(ROOT, "tests/log")
    assert not has_test(ROOT, "tests/mutants/test_registry.py::test_names_of_mutants_are")
    assert not has_test(ROOT, "tests/mutants/test_regis.py")


def test_a_mutant_whose_text_is_gone_or_there_twice_does_not_apply() -> None:
    file = "tests/mutants/mutant.py"
    for old in ("no such " + "text", "Mutant"):
        with pytest.raises(ValueError, match="expected once"):
            Mutant("stale", "", ((file, old, "x"),), ()).broken(ROOT)


def test_the_document_lists_every_mutant_with_a_test_that_it_names() -> None:
    noticed = report.noticed()
    names = {mutant.name for mutant in MUTANTS}
    assert noticed.keys() == names, "make mutants adds new ones"
    for mutant in MUTANTS:
        test = noticed[mutant.name]
        assert has_test(ROOT, test), f"{mutant.name}: {test} is gone"
        named = [each.partition("[")[0] for each in mutant.tests]
        assert any(f"{test}::".startswith(f"{each}::") or test.startswith(f"{each}/") for each in named), test
    assert report.DOCUMENT.read_text().endswith(report.tables(noticed))


@pytest.mark.parametrize("name", ["test_history_mutants", "test_run_histories", "test_wire_mutants"])
def test_what_a_mutant_replaces_in_a_running_process_is_there(name: str) -> None:
    """A mutant that assigns to an attribute that was renamed would break nothing."""
    module = importlib.import_module(f"tests.crash.{name}")
    assert module.__file__ is not None and module.MUTANTS
    mutants = {mutant.__name__ for mutant, _ in module.MUTANTS}
    for function in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(function, ast.FunctionDef) and function.name in mutants:
            replaced = [each for each in _replaced(function) if ast.unparse(each).split(".")[0] in vars(module)]
            assert replaced, function.name
            for each in replaced:
                assert hasattr(eval(ast.unparse(each.value), vars(module)), each.attr), ast.unparse(each)


def _replaced(function: ast.FunctionDef) -> list[ast.Attribute]:
    assigned = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    return [target for each in assigned for target in each.targets if isinstance(target, ast.Attribute)]
