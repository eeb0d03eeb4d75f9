"""How many generations of the game of life does the pipeline of examples/life make a second?

A torus of 512 x 512 cells, of which 30 % live at first. Each micro-batch reads the changes of eight generations from
the topic and writes those of the next eight to it, in one transaction, on disk; a generation has 80,000 changes at
first, and 25,000 after a hundred. Each round is a new world in a warm session; its first two micro-batches are not
counted. `cpu_ms` is that of Spark, the JVM and its Python processes, for one generation of the whole run. In
`parts`: where the time of a micro-batch goes, as Spark itself says it, p50 of each, in ms; `state_commit` is part of
addBatch, added up over the tasks.

NumPy alone, the whole world in memory in one process and nothing written, is beside it for orientation.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import _harness as harness
import _spark as spark

FIRST = 2  # micro-batches of a world, not counted
PARTS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")

sys.path.insert(0, str(harness.ROOT / "examples" / "life"))


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], rounds=3, size=(512, "cells in a row"), generations=(112, "of a world")
    )
    size, generations, first = options.size, options.generations, FIRST
    if options.quick:
        size, generations, first = 64, 24, 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        import life
        import reference
        import world
        from pyspark import cloudpickle

        import klamm.spark

        cloudpickle.register_pickle_by_value(life)  # to Python's workers it is not a module
        settings = {**spark.SETTINGS, **life.SETTINGS, **(spark.QUICK if options.quick else {})}
        session = klamm.spark.session(master="local[2]", **settings)

    cpu: list[float] = []

    def ours() -> list[dict[str, Any]]:
        with harness.folder() as path, spark.clock(generations) as sample:
            done: list[dict[str, Any]] = life.run(session, f"{path}/store", size, generations, seed=7)
        cpu.append(sample.cpu / (len(done) * world.AT_ONCE) * 1000)
        return done[first:]

    def numpy() -> float:
        cells = world.random_cells(size, 7)
        begin = time.perf_counter()
        for _ in range(generations):
            cells = reference.step(cells)
        return generations / (time.perf_counter() - begin)

    found = harness.interleave({"klamm": ours, "numpy": numpy}, options.rounds, warm=not options.quick)
    session.stop()
    seconds = [sum(each["durationMs"]["triggerExecution"] for each in run) / 1000 for run in found["klamm"]]
    events = [sum(each["numInputRows"] for each in run) for run in found["klamm"]]
    every = [each for run in found["klamm"] for each in run]
    harness.answer(
        f"Game of life, {size} x {size}",
        [len(run) * world.AT_ONCE / spent for run, spent in zip(found["klamm"], seconds, strict=True)],
        "NumPy alone, in memory",
        found["numpy"],
        harness.at_least(10, "figure"),
        unit="generations/s",
        events_per_s=middle([count / spent for count, spent in zip(events, seconds, strict=True)]),
        cpu_ms=middle(cpu[-options.rounds :]),
        at_once=world.AT_ONCE,
        parts={
            **{name: middle([each["durationMs"].get(name, 0) for each in every]) for name in PARTS},
            "state_commit": middle([each["stateOperators"][0]["commitTimeMs"] for each in every]),
        },
        trigger_p50_ms=middle([each["durationMs"]["triggerExecution"] for each in every]),
        trigger_p99_ms=harness.percentile([each["durationMs"]["triggerExecution"] for each in every], 99),
        count=len(every),
    )


def middle(values: list[float]) -> float:
    return harness.digits(harness.median(values))


if __name__ == "__main__":
    main()
