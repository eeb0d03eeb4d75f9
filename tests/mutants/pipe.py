"""Mutants of pipes: Python functions between topics."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUNNER = "src/klamm/client/pipe/runner.py"
STATE = "src/klamm/client/pipe/state.py"
INTERRUPT = "src/klamm/client/consume/interrupt.py"
TESTS = "tests/client/test_pipe.py"
LOST_TEST = f"{TESTS}::test_a_member_that_has_lost_its_partition_commits_nothing_of_it"

MUTANTS = [
    Mutant(
        "the progress of a pipe is no part of its transaction",
        "client/pipe/runner.py PIP1",
        (
            (
                RUNNER,
                "            transaction.commit_offsets(self._consumer)\n            transaction.commit()\n",
                "            transaction.commit()\n            self._consumer.commit()\n",
            ),
        ),
        (LOST_TEST,),
    ),
    Mutant(
        "the changelog of a pipe is no part of its transaction",
        "client/pipe/state.py PST1",
        (
            (
                RUNNER,
                "transaction.send(states.changelog, value, key=key, partition=number)",
                "self._session.core.topic(states.changelog).partition(number).append_one(key, value, -1)",
            ),
        ),
        (LOST_TEST,),
    ),
    Mutant(
        "the state of a pipe is not read when a partition is taken over",
        "client/pipe/state.py PST2",
        ((STATE, "        return values\n", "        return {}\n"),),
        (f"{TESTS}::test_a_pipe_that_begins_again_goes_on_with_the_state_that_was_committed",),
    ),
    Mutant(
        "the state of a pipe is read before the last transaction can be",
        "client/pipe/state.py PST2",
        ((STATE, "        await_stable(self._core, [log])\n", ""),),
        (f"{TESTS}::test_a_partition_is_taken_over_with_the_state_of_a_transaction_whose_markers_are_missing",),
    ),
    Mutant(
        "a pipe keeps the state of a transaction that was aborted",
        "client/pipe/state.py PST3",
        ((RUNNER, "            self._states.forget()\n", "            self._states.committed()\n"),),
        (f"{TESTS}::test_an_error_of_the_function_aborts_and_is_raised_and_nothing_is_done_twice",),
    ),
    Mutant(
        "a pipe goes on with a transaction that has records of a partition that was lost",
        "client/pipe/runner.py PIP2",
        ((RUNNER, "        self.abort()\n        self._drop(partitions)\n", "        self._drop(partitions)\n"),),
        (LOST_TEST,),
    ),
    Mutant(
        "SIGTERM does not end a pipe well",
        "client/pipe/pipe.py: SIGTERM ends run after the record that is at hand",
        ((INTERRUPT, "numbers = _SIGNALS if self._is_call else (signal.SIGINT,)", "numbers = (signal.SIGINT,)"),),
        ("tests/client/test_pipe_end.py::test_a_signal_ends_a_run_after_the_record_that_is_at_hand",),
    ),
    Mutant(
        "a transaction of a pipe that took too long is done again as it was",
        "client/pipe/runner.py PIP3",
        ((RUNNER, "        self._limit = 1\n", ""),),
        (f"{TESTS}::test_a_function_that_takes_longer_than_a_transaction_may_gets_through",),
    ),
    Mutant(
        "a pipe writes some outputs of a record that became a dead letter",
        "guide/pipes.md: then none of the record's outputs is written",
        ((RUNNER, "                raise _Again from error  # other", "                return  # other"),),
        (f"{TESTS}::test_a_record_whose_output_cannot_be_sent_is_a_dead_letter_without_any_output",),
    ),
    Mutant(
        "a pipe takes a coroutine for a value",
        "guide/pipes.md: an async def is refused",
        (
            (
                "src/klamm/client/pipe/output.py",
                'if hasattr(result, "__await__") or hasattr(result, "__aiter__"):',
                'if hasattr(result, "__aiter__"):',
            ),
        ),
        (f"{TESTS}::test_what_nothing_would_await_is_an_error",),
    ),
]
