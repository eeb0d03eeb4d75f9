"""What do blocks ahead of the commit gain for acks="all", beside the commit before?

One record of 100 B (8 B key), append(acks="all"), on the file system of $KLAMM_BENCH_DIR. Two processes, one on this
commit's sources and one on those of --before (built in build/before), take turns at twenty appends each, so that both
meet the same disk. A round is one hundred turns each; p50, in appends a second. The log has 128 KiB before.
"""

from __future__ import annotations

from contextlib import ExitStack, closing

import _before
import _harness as harness
from _before import Tree, Worker

TURN = 20


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        rounds=7,
        turns=(100, "of twenty appends, a round and side"),
        before=("242d4e3", "the commit to compare with"),
    )
    turns = 2 if options.quick else options.turns
    before = _before.HERE if options.quick else _before.build(options.before)
    rates: dict[str, list[float]] = {"now": [], "before": []}
    p99: dict[str, list[float]] = {"now": [], "before": []}
    for _ in range(options.rounds):
        found = one_round({"now": _before.HERE, "before": before}, turns)
        for side, times in found.items():
            rates[side].append(1e6 / harness.percentile(times, 50))
            p99[side].append(harness.percentile(times, 99))
    more = {"p50_us": harness.digits(1e6 / harness.median(rates["now"])), "count": turns * TURN}
    more["peer_p50_us"] = harness.digits(1e6 / harness.median(rates["before"]))
    more |= {
        "p99_us": harness.digits(harness.median(p99["now"])),
        "peer_p99_us": harness.digits(harness.median(p99["before"])),
    }
    harness.answer(
        "single append, acks=all", rates["now"], before.name, rates["before"], harness.at_least(1.25), unit="/s", **more
    )


def one_round(trees: dict[str, Tree], turns: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {side: [] for side in trees}
    with harness.folder() as path, ExitStack() as stack:
        workers = {}
        for side, tree in trees.items():
            Worker(tree, "make", f"{path}/{side}").close()
            workers[side] = stack.enter_context(closing(Worker(tree, "durable", f"{path}/{side}", TURN)))
        for turn in range(turns):
            for side in list(workers) if turn % 2 else reversed(workers):
                workers[side].ask()
                times[side] += workers[side].answer()
    return times


if __name__ == "__main__":
    main()
