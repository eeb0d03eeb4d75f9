"""How long does `import klamm` take?

Each import runs in a Python of its own under `-X importtime`; the figure is what the import adds to an interpreter
that has started, in milliseconds. Beside it: the two stores that a program would import instead. `top` names the
five modules that take most themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys

import _harness as harness


def imported(module: str) -> tuple[float, dict[str, float]]:
    """Milliseconds, and those of each module that came with it."""
    code = f"import sys; print('---', file=sys.stderr); import {module}"
    command = [sys.executable, "-X", "importtime", "-c", code]
    # With compiled modules, as an installed package has them; the first round makes them.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    own: dict[str, float] = {}
    for line in run.stderr.split("---\n", 1)[1].splitlines():
        times, name = line.removeprefix("import time:").rsplit("|", 1)
        own[name.strip()] = int(times.split("|")[0]) / 1000
    return sum(own.values()), own


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=9)
    found = harness.interleave(
        {name: (lambda name=name: imported(name)) for name in ("klamm", "lmdb", "sqlite3")}, options.rounds
    )
    times = {name: [total for total, _ in runs] for name, runs in found.items()}
    names = {name for _, own in found["klamm"] for name in own}
    own = {name: harness.median([run.get(name, 0.0) for _, run in found["klamm"]]) for name in names}
    top = sorted(own.items(), key=lambda item: -item[1])[:5]
    for peer, want in (("sqlite3", harness.at_most(100, "figure")), ("lmdb", None)):
        harness.answer(
            "import klamm",
            times["klamm"],
            f"import {peer}",
            times[peer],
            want,
            unit="ms",
            least=harness.digits(min(times["klamm"])),
            modules=len(names),
            top={name: harness.digits(value) for name, value in top},
        )


if __name__ == "__main__":
    main()
