"""Mutants of what the command line prints and does."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OUTPUT = "src/klamm/cli/output.py"

MUTANTS = [
    Mutant(
        "JSON on a terminal lets control characters through",
        "cli/output.py: control characters are shown, not sent",
        ((OUTPUT, "if is_terminal() else line", "if False else line"),),
        ("tests/cli/test_output.py::test_json_for_a_terminal_has_no_control_characters",),
    ),
    Mutant(
        "a table in a pipe has colours",
        "cli/output.py: a pipe gets no colours",
        ((OUTPUT, "force_terminal=is_terminal(),", "force_terminal=None,"),),
        ("tests/cli/test_output.py::test_the_program_prints_a_table_into_a_pipe_without_colours",),
    ),
    Mutant(
        "klamm info waits for locks",
        "cli/info.py: takes no lock",
        (("src/klamm/cli/info.py", "read_only=True", "looks=True"),),
        ("tests/cli/test_info.py::test_a_stopped_process_does_not_hold_it_up",),
    ),
    Mutant(
        "klamm tx list ends the transactions of dead processes",
        "guide/command-line.md: klamm tx list ends none of them",
        (
            (
                "src/klamm/cli/tx.py",
                "    with opened(store, read_only=True) as events:\n        rows",
                "    with opened(store, looks=True) as events:\n        rows",
            ),
        ),
        ("tests/cli/test_tx.py::test_the_transaction_of_a_killed_process_is_listed_until_it_is_aborted",),
    ),
    Mutant(
        "a hint of the library goes to people who type commands",
        "api/hints.py: by the code of an error",
        (("src/klamm/api/hints.py", 'return HINTS.get(error.code or "", error.hint)', "return error.hint"),),
        ("tests/cli/test_hints.py::test_errors_of_the_library_tell_which_command_helps",),
    ),
    Mutant(
        "klamm tail prints the first of several topics only",
        "guide/command-line.md: klamm tail orders users shows several topics together",
        (("src/klamm/cli/tail.py", "topics = list(dict.fromkeys(topics))", "topics = topics[:1]"),),
        ("tests/cli/test_tail.py::test_the_last_of_several_topics_come_together_by_time",),
    ),
]
