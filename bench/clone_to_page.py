"""How long does it take from `git clone` until the console shows the first record?

Each round clones this repository into a new folder, with empty caches of pip and uv, and runs `make run` there: Python
packages are downloaded, native modules compiled, server, console and feed started. The clock stops when the page of the
topic has a record. Beside it: `make run` in the same folder once more. It needs a network, Python with headers, a C
compiler and make. What the index of packages and the network take is in the figure.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import _harness as harness

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 600.0
PAGE = re.compile(r"The console +(http://\S+)")
END_S = 60.0


def shown(command: list[str], checkout: Path, environment: dict[str, str], began: float) -> float:
    """Run the command, and return the seconds from `began` until its console shows a record; then end it."""
    master, terminal = pty.openpty()  # without a terminal it would end by itself
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=environment,
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        page = next((found[1] for line in process.stdout if (found := PAGE.search(line)) is not None), None)
        if page is None:
            raise SystemExit(f"clone_to_page: {' '.join(command)} ended with exit code {process.wait()}")
        while not has_record(f"{page}topics/orders"):
            if time.perf_counter() - began > LIMIT_S:
                raise SystemExit(f"clone_to_page: {page} shows no record within {LIMIT_S:g} s")
            time.sleep(0.02)
        return time.perf_counter() - began
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=END_S)
        os.close(master)
        os.close(terminal)


def has_record(page: str) -> bool:
    """Return whether a topic's page has a row of a record."""
    try:
        with urlopen(page, timeout=END_S) as response:
            return b'<tr data-key="record ' in response.read()
    except (URLError, OSError):
        return False


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=3)
    fresh, installed = [], []
    for _ in range(options.rounds):
        with harness.folder() as folder:
            environment = {**os.environ, "PIP_CACHE_DIR": f"{folder}/pip", "UV_CACHE_DIR": f"{folder}/uv"}
            checkout, command = ROOT, [sys.executable, "examples/live.py", f"{folder}/events"]
            began = time.perf_counter()
            if not options.quick:
                checkout, command = Path(folder) / "klamm", ["make", "run", f"ARGS={folder}/events"]
                subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, checkout], check=True)
            fresh.append(shown(command, checkout, environment, began))
            installed.append(shown(command, checkout, environment, time.perf_counter()))
    harness.answer(
        "from git clone to the first record on the page",
        fresh,
        "make run, once installed",
        installed,
        harness.at_most(60, "figure"),
        unit="s",
    )
    harness.answer(
        "from make run to the first record on the page, once installed",
        installed,
        "from git clone",
        fresh,
        harness.at_most(5, "figure"),
        unit="s",
    )


if __name__ == "__main__":
    main()
