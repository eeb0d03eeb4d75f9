"""Every mutant still applies, and the tests that must notice it are there. `make mutants` runs them."""

from __future__ import annotations

from collections import Counter

import pytest

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
