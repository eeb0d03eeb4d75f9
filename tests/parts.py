"""All tests, in parts, two at a time: what `make test` does.

    python tests/parts.py [argument of pytest …]

A process for each part: librdkafka and the JVM leave threads and descriptors behind, and above the 1,024th descriptor
select() fails, for whoever uses it. Two at a time, since most tests wait: for a disk, a time-out, somebody who was
killed. What a part says is told when it has ended, and at last how long each took.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
NOTHING_CHOSEN = 5  # an exit code of pytest's: no test fits the arguments
AT_ONCE = 2
PARTS = {  # the longest first
    "pipelines": ["spark/pipelines"],
    "others": [],
    "crash": ["crash"],
    "spark": ["spark"],
    "interop": ["interop"],
    "kafka": ["kafka"],
    "log": ["batch", "disk", "log", "store"],
}
"""Folders of tests; those that no part names are the others."""


class Part(NamedTuple):
    name: str
    code: int
    seconds: float
    said: str


def arguments_of(name: str) -> list[str]:
    mine = PARTS[name] or ["."]
    others = [folder for part, folders in PARTS.items() for folder in folders if part != name]
    return [*(str(HERE / folder) for folder in mine), *(f"--ignore={HERE / folder}" for folder in others)]


def run(name: str, more: list[str]) -> Part:
    print(f"test: {name} …", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as file:  # not a pipe: whoever outlives a test may hold it open
        command = [sys.executable, "-m", "pytest", "-q", *arguments_of(name), *more]
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        file.seek(0)
        return Part(name, code, time.monotonic() - begin, file.read())


def main(more: list[str]) -> int:
    begin = time.monotonic()
    names = list(PARTS)
    done = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for part in pool.map(lambda name: run(name, more), names):
            print(f"---- {part.name}\n{part.said}", end="", flush=True)
            done.append(part)
    chosen = [part for part in done if part.code != NOTHING_CHOSEN]
    took = ", ".join(f"{part.name} {part.seconds:.0f} s" for part in chosen)
    print(f"---- {took}; in all {time.monotonic() - begin:.0f} s")
    failed = [part.name for part in chosen if part.code]
    if failed or not chosen:
        print(f"test: failed: {', '.join(failed) or 'no test was chosen'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
