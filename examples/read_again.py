"""A producer, and a consumer that reads everything again each time it runs.

    python examples/read_again.py events/

Reading does not take records away: every run, and every other program, starts at the first one.
"""

from __future__ import annotations

import sys
import time

import klamm

COUNT = 100_000


def main(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("messages", exist_ok=True)
        began = time.perf_counter()
        with store.producer(serde="json") as producer:
            for n in range(COUNT):
                producer.send("messages", {"n": n, "text": "hello"})
        print(f"wrote {COUNT:,} in {time.perf_counter() - began:.2f} s")

        for run in (1, 2):
            began, total = time.perf_counter(), 0
            with store.consumer("messages", serde="json", wait=0) as messages:
                for message in messages:
                    total += message.value["n"]
            print(f"run {run}: the sum of all n is {total:,}, in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
