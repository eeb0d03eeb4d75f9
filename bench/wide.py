"""How long does the first poll of a group over 10,000 partitions take?

Beside it, in the same line: looking at the group, planning to move it, and the last three records of the topic.
"""

from __future__ import annotations

import time

import _harness as harness
import klamm


def seconds_of(action) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def first_poll(store: klamm.Store, group: str) -> float:
    with store.consumer("wide", group=group, wait=0) as consumer:
        return seconds_of(consumer.poll)


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=3, count=(10_000, "partitions"))
    count = 200 if options.quick else options.count
    with harness.folder() as path, klamm.open(path + "/store") as store:
        store.topics.create("wide", partitions=count)
        for number in range(0, count, 10):
            store.append("wide", b"x", partition=number, acks=0)
        store.groups.reset("shown", "wide", to="earliest")
        found = harness.interleave(
            {
                "poll": lambda: first_poll(store, f"group {time.time_ns()}"),
                "group": lambda: seconds_of(lambda: store.groups.describe("shown")),
                "plan": lambda: seconds_of(lambda: store.groups.plan_reset("shown", "wide", to="latest")),
                "tail": lambda: seconds_of(lambda: list(store.tail("wide", 3))),
            },
            options.rounds,
        )
    more = {f"{side}_s": harness.digits(harness.median(found[side])) for side in ("group", "plan", "tail")}
    harness.answer(
        "first poll of a group over many partitions",
        found["poll"],
        None,
        None,
        harness.at_most(1.5, "figure"),
        unit="s",
        partitions=count,
        **more,
    )


if __name__ == "__main__":
    main()
