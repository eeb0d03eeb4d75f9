"""A recorded program, cut at any of its steps: the part that tests of power cuts share.

    recording = Recording(root, script, "argument")                  # runs it under powercut.c
    recording.cut(check, seed=seed, lucks=[0, 1, None])              # check(directory, notes), after every step
    recording.cut(check, seed=seed, moments=[recording.after(returned="backup")])

`luck` says what survives of all that was not synced: 0 none of it, 1 all of it, None random parts (powercut.py).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from klamm.store import directory
from tests.crash import powercut
from tests.crash.cases import run_cases
from tests.crash.powercut import Disk

Notes = list[dict[str, Any]]
Luck = Sequence[float | None]


class Recording:
    """One run of a script, and the disk as it was before. What was there before the run counts as synced."""

    def __init__(self, root: Path, script: Path | Callable[[Path], None], *arguments: str) -> None:
        """Run `script`, or call it with the file that it is to record into (powercut.recorded)."""
        root.mkdir(exist_ok=True)
        self.root = root
        self._disk = Disk.of(root)
        self._trace = root.with_name(f"{root.name}.trace")
        if isinstance(script, Path):
            self.steps = powercut.record(root, self._trace, script, str(root), *arguments)
        else:
            script(self._trace)
            self.steps = powercut.load(self._trace)
        self.moments = list(powercut.moments(self.steps))

    def after(self, **note: object) -> int:
        """Return the moment at which this note, the only one with these fields, has just been made."""
        (found,) = [
            number
            for number, step in enumerate(self.steps, 1)
            if step.kind == "N" and note.items() <= step.note.items()
        ]
        return found

    def states(self, moments: Sequence[int]) -> Iterator[tuple[int, Disk, Notes]]:
        """Replay the run, once only: yield each of these moments with the disk and the notes up to it."""
        notes: Notes = []
        taken = 0
        for moment in sorted(moments):
            for step in self.steps[taken:moment]:
                self._disk.take(step)
                if step.kind == "N":
                    notes.append(step.note)
            taken = moment
            yield moment, self._disk, notes

    def cut(
        self,
        check: Callable[[Path, Notes], object],
        *,
        seed: int,
        lucks: Luck = (0, 1, None),
        moments: Sequence[int] | None = None,
    ) -> int:
        """Cut the power at these moments (default: all), check what is left, and return the number of cuts."""
        wanted = sorted(self.moments if moments is None else moments)
        states = self.states(wanted)  # begun in the children, each its own
        chosen = [(luck, powercut.distinct(self.steps, wanted, luck)) for luck in lucks]

        def run(moment: int, worker: int) -> None:
            directory.boot_id = lambda: b"after the outage"
            disk, notes = next((disk, notes) for reached, disk, notes in states if reached == moment)
            for variant, (luck, at) in enumerate(chosen):
                if moment not in at:
                    continue
                target = self.root.with_name(f"{self.root.name}.cut-{worker}")
                shutil.rmtree(target, ignore_errors=True)
                disk.cut(target, random.Random(f"{seed}:{moment}:{variant}"), luck)
                try:
                    check(target, notes)
                except BaseException:
                    print(f"cut at step {moment} of {len(self.steps)}, luck {luck}, variant {variant}, seed {seed}")
                    print(f"the last steps: {[step[:4] for step in self.steps[max(0, moment - 5) : moment]]}")
                    print(f"the last notes: {notes[-3:]}")
                    raise

        try:
            run_cases(wanted, run)
        except pytest.fail.Exception:
            print(f"the trace is kept in {shutil.copy(self._trace, '/tmp')}")
            raise
        return sum(len(at) for _, at in chosen)


__all__ = ["Luck", "Notes", "Recording"]
