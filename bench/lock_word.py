"""What does the append lock cost when processes contend for it, beside the commit before it became a word?

    writers      one, two and four processes append (8 B key, 100 B value) to one partition, acks=1, one record at a
                 time, for a second; the figure is what all of them did
    hand-over    how long one append takes in another process than the last one's: of two that take turns, and of one
                 that appends every millisecond beside one that never stops. p99

Both sides run the same program (_appender.py), on the sources of this commit and on those of --before, which is built
in build/before. Stores are the sides' own: the formats differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

import _before
import _harness as harness
from _before import Tree, Worker


def workers(stack: ExitStack, tree: Tree, path: str, *programs: tuple[object, ...]) -> list[Worker]:
    Worker(tree, "make", path).close()
    return [stack.enter_context(closing(Worker(tree, name, path, *more))) for name, *more in programs]


def rate(tree: Tree, writers: int, seconds: float) -> tuple[float, float]:
    """Records a second of all, and the worst writer's p99."""
    with harness.folder() as path, ExitStack() as stack:
        made = workers(stack, tree, path + "/store", *[("write", seconds)] * writers)
        for worker in made:
            worker.ask()
        found = [worker.answer() for worker in made]
    return sum(count / took for count, took, _ in found), max(p99 for _, _, p99 in found)


def turns(tree: Tree, count: int) -> list[float]:
    with harness.folder() as path, ExitStack() as stack:
        pair = workers(stack, tree, path + "/store", ("one",), ("one",))
        times = []
        for number in range(count):
            pair[number % 2].ask()
            times.append(pair[number % 2].answer())
    return times[2:]


def beside_a_busy_one(tree: Tree, count: int) -> list[float]:
    with harness.folder() as path, ExitStack() as stack:
        single, busy = workers(stack, tree, path + "/store", ("now_and_then", count), ("loop",))
        busy.ask()
        single.ask()
        times: list[float] = single.answer()
    return times[2:]


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        rounds=7,
        seconds=(1.0, "of appending, a round"),
        count=(1000, "hand-overs a round"),
        before=("520c204^", "the commit to compare with"),
    )
    seconds, count = (0.05, 20) if options.quick else (options.seconds, options.count)
    before = _before.HERE if options.quick else _before.build(options.before)

    def both(run: Callable[[Tree], object]) -> dict[str, list]:
        sides = {"now": lambda: run(_before.HERE), "before": lambda: run(before)}
        return harness.interleave(sides, options.rounds, warm=False)

    for question, writers, want in (
        ("one writer on one partition, acks=1", 1, None),
        ("two writers on one partition, acks=1", 2, harness.at_least(1.8)),
        ("four writers on one partition, acks=1", 4, harness.at_least(1.8)),
    ):
        if options.only in question:
            found = both(lambda tree, writers=writers: rate(tree, writers, seconds))
            more = {
                name: harness.digits(harness.median([p99 for _, p99 in found[side]]))
                for name, side in (("p99_us", "now"), ("peer_p99_us", "before"))
            }
            rates = [[each for each, _ in found[side]] for side in ("now", "before")]
            harness.answer(question, rates[0], before.name, rates[1], want, unit="records/s", **more)
    for question, run in (
        ("hand-over of the append lock, two processes that take turns", turns),
        ("hand-over of the append lock, beside a process that never stops", beside_a_busy_one),
    ):
        if options.only in question:
            found = both(lambda tree, run=run: run(tree, count))
            p50, p99 = (
                {side: [harness.percentile(times, percent) for times in found[side]] for side in found}
                for percent in (50, 99)
            )
            more = {"p50_us": harness.digits(harness.median(p50["now"])), "count": count}
            more["peer_p50_us"] = harness.digits(harness.median(p50["before"]))
            harness.answer(question, p99["now"], before.name, p99["before"], harness.at_most(1), unit="µs p99", **more)


if __name__ == "__main__":
    main()
