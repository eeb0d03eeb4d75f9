"""Mutants of values and errors: serdes, headers, slices of batches, SQL, what was closed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TYPED = "tests/test_typed_by_newcomers.py"
SLICES = "tests/client/test_batch_slices.py"
SQL = "tests/arrow/test_sql.py"
TYPES = "src/klamm/types.py"
TARGET = "src/klamm/client/produce/target.py"
SERDE = "src/klamm/client/serde.py"
DATABASE = "src/klamm/arrow/database.py"

MUTANTS = [
    Mutant(
        "a slice of a batch takes its offsets to lie in a row",
        "types.py: a slice covers its records",
        (
            (
                TYPES,
                "return self.begin + index if self._offsets is None else self._offsets[index]",
                "return self.begin + index",
            ),
        ),
        (f"{SLICES}::test_what_is_committed_by_a_slice_is_what_is_in_it",),
    ),
    Mutant(
        "a slice of a batch begins where the batch does",
        "types.py: a slice covers its records",
        (
            (
                TYPES,
                "begin, end = self._offset_of(start), self._offset_of(stop)",
                "begin, end = self.begin, self._offset_of(stop)",
            ),
        ),
        (f"{SLICES}::test_slices_go_into_transactions_one_after_the_other",),
    ),
    Mutant(
        "a batch that was made shorter still gives offsets to its slices",
        "types.py: a slice of a batch that has become shorter is a list",
        ((TYPES, " and len(self) == self._count:", ":"),),
        (f"{SLICES}::test_a_batch_that_was_made_shorter_has_no_offsets_for_its_slices",),
    ),
    Mutant(
        "an empty slice is committed",
        "client/groups/commits.py",
        (("src/klamm/client/groups/commits.py", "if what.begin == what.end:", "if what.begin < 0:"),),
        (f"{SLICES}::test_an_empty_slice_commits_nothing",),
    ),
    Mutant(
        "the first header of a name is found, not the last",
        "docs/reference/api.md: Headers",
        (
            (
                "src/klamm/batch/_record.pxi",
                "    def __getitem__(self, name):\n        for pair in reversed(self.pairs):\n",
                "    def __getitem__(self, name):\n        for pair in self.pairs:\n",
            ),
        ),
        (f"{TYPED}::test_headers_of_a_record_are_looked_up_by_name",),
    ),
    Mutant(
        "the shortest way of an append passes the store's serde by",
        "docs/reference/api.md: serde is for every call of a store",
        ((TARGET, " and not self.keyed and takes_bytes\n", " and not self.keyed\n"),),
        (f"{TYPED}::test_a_store_may_have_a_serde_for_all_of_its_doors",),
    ),
    Mutant(
        "records before one that the serde refuses are dropped",
        "client/produce/target.py: those before it in its partition are appended",
        (
            (
                TARGET,
                "        if done:\n            yield done\n",
                "        if done and refused is None:\n            yield done\n",
            ),
        ),
        (f"{TYPED}::test_records_before_one_that_the_serde_refuses_are_appended",),
    ),
    Mutant(
        "a store's serde wins over that of a call",
        "docs/reference/api.md: serde is for every call of a store that has none of its own",
        (
            (
                SERDE,
                "defaults.serde if self.serde is None else self.serde",
                "self.serde if defaults.serde is None else defaults.serde",
            ),
        ),
        (f"{TYPED}::test_a_call_may_have_another_serde_than_its_store",),
    ),
    Mutant(
        "a closed log says that it was forked",
        "docs/reference/errors.md: Closed",
        (("src/klamm/log/results.py", "        if partition.is_forked:\n", "        if partition:\n"),),
        (f"{TYPED}::test_whatever_is_closed_raises_one_class",),
    ),
    Mutant(
        "a log from before a fork says that it is closed",
        "docs/reference/errors.md: Forked",
        (
            (
                "src/klamm/log/partition.py",
                "        self.is_forked = True\n        self.log.in_child()",
                "        self.log.in_child()",
            ),
        ),
        (f"{TYPED}::test_what_is_from_before_a_fork_is_not_called_closed",),
    ),
    Mutant(
        "variables of Klamm's own are tables of a query",
        "arrow/database.py",
        ((DATABASE, "python_enable_replacements = false", "python_enable_replacements = true"),),
        (f"{SQL}::test_parameters_are_data_and_variables_of_python_are_no_tables",),
    ),
    Mutant(
        "a query takes Ctrl-C from a handler of the user's own",
        "arrow/database.py",
        ((DATABASE, " or before is not signal.default_int_handler:", ":"),),
        (f"{SQL}::test_an_exception_of_the_users_own_signal_handler_ends_a_query",),
    ),
    Mutant(
        "an exception of a signal handler waits for the query's own end",
        "arrow/database.py",
        (
            (
                DATABASE,
                "run.is_begun and not run.ended.wait(_NAG_S):\n                    self._interrupt()\n",
                "run.is_begun and not run.ended.wait(_NAG_S):\n                    pass\n",
            ),
        ),
        (f"{SQL}::test_an_exception_of_the_users_own_signal_handler_ends_a_query",),
    ),
]
