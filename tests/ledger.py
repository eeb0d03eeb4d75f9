"""The record of long runs: `make soak` and `make mutants` append a line each to tests/soak.jsonl.

date          UTC, when the run ended
run           "soak" or "mutants"
arguments     ARGS of make, as given
is_partial    whether the arguments may leave something out
tree          `git rev-parse HEAD:src`: the source that was run
is_dirty      whether src or tests differ from that commit
seconds       how long it took
soak_seconds  KLAMM_SOAK_SECONDS, or null
passed        tests that passed, or mutants that were killed; null if nobody counted them
failed        those that did not
failures      their names
reasons       of each: the last seed that it printed, and the beginning of its error; only where something failed
exit          exit code of the run
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEDGER = Path(__file__).with_name("soak.jsonl")


def append(
    run: str,
    arguments: Sequence[str],
    *,
    is_partial: bool,
    seconds: float,
    passed: int | None,
    failures: Sequence[str],
    exit_code: int,
    reasons: Sequence[str] = (),
    ledger: Path = LEDGER,
) -> None:
    """Append the line of a run that has ended."""
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "arguments": list(arguments),
        "is_partial": is_partial,
        "tree": _git("rev-parse", "HEAD:src").strip(),
        "is_dirty": bool(_git("status", "--porcelain", "--", "src", "tests", f":!tests/{LEDGER.name}").strip()),
        "seconds": round(seconds),
        "soak_seconds": os.environ.get("KLAMM_SOAK_SECONDS"),
        "passed": passed,
        "failed": len(failures),
        "failures": list(failures),
        **({"reasons": list(reasons)} if reasons else {}),
        "exit": exit_code,
    }
    with ledger.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _git(*arguments: str) -> str:
    """Return what git prints; nothing where there is no repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout
