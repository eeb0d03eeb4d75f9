"""Runs every script of this folder and writes what they answered to results/<date>.jsonl: what `make bench` does.

    python bench/_collect.py [--quick] [name …]

Each line is also told in short on the terminal. A miss is a result, not a failure; a script that fails is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def told(line: dict) -> str:
    verdict = {True: "ok  ", False: "MISS", None: "    "}[line["ok"]]
    ratio = f"{line['ratio']:>8g} ×" if line["ratio"] is not None else " " * 10
    return f"{verdict} {ratio} {line['want'] or '':>15}  {line['question']}: {line['figure']:g} {line['unit']}" + (
        f" · {line['peer']}: {line['peer_figure']:g}" if line["peer"] else ""
    )


def main() -> int:
    quick = "--quick" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    scripts = (
        sorted(HERE.glob("[a-z]*.py")) if not names else [HERE / f"{name.removesuffix('.py')}.py" for name in names]
    )
    lines = []
    failed = []
    for script in scripts:
        print(f"bench: {script.stem}", flush=True)
        run = subprocess.Popen(
            [sys.executable, str(script), *(["--quick"] if quick else [])], stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        for text in run.stdout:
            line = {"script": script.stem, **json.loads(text)}
            lines.append(line)
            print(told(line), flush=True)
        if run.wait() != 0:
            failed.append(script.stem)
    if lines and not quick:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
        again = {line["script"] for line in lines}  # a script that ran again today replaces what it said
        kept = (
            [old for old in path.read_text().splitlines() if json.loads(old)["script"] not in again]
            if path.exists()
            else []
        )
        path.write_text(
            "".join(text + "\n" for text in [*kept, *(json.dumps(line, ensure_ascii=False) for line in lines)])
        )
        print(f"bench: {len(lines)} lines in {path.relative_to(HERE.parent)}")
    misses = sum(line["ok"] is False for line in lines)
    print(f"bench: {misses} of {sum(line['ok'] is not None for line in lines)} goals missed")
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
