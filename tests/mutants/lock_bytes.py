"""Mutants of lock bytes: their queue, and which process holds them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HOLD = "src/klamm/disk/_hold.pxi"
HOLDERS = "tests/disk/test_holders.py"

MUTANTS = [
    Mutant(
        "a forked child is recorded as its parent",
        "disk/holders.py: a word says which process took a byte last",
        (("src/klamm/disk/os.h", "if (found >> 32 != pid) {", "if (!found) {"),),
        (f"{HOLDERS}::test_a_forked_child_has_another_identity_and_the_same_namespace",),
    ),
    Mutant(
        "a process that is stopped in the queue for klamm.db keeps all others waiting",
        "internals/commit.md: waiting",
        (
            (
                HOLD,
                "if byte == self.queue and klamm_monotonic_ns() - looked_ns",
                "if False and klamm_monotonic_ns() - looked_ns",
            ),
        ),
        (f"{HOLDERS}::test_a_process_that_is_stopped_in_the_queue_delays_others_for_a_moment_only",),
    ),
]
