"""A consumer that reads only what is new: its group's progress is in the store, not in a file of its own.

    python examples/only_what_is_new.py events/ [name of the consumer]

Run it again and again: each run appends five records, and prints those that this consumer has not seen. Another name
begins at the first record.
"""

from __future__ import annotations

import sys

import klamm


def main(path: str, name: str = "reader") -> None:
    with klamm.open(path) as store:
        store.topics.create("news", exist_ok=True)
        first = store.topics.describe("news").count
        store.append_many("news", [b"message %d" % (first + n) for n in range(5)])

        with store.consumer("news", group=name, serde="str", wait=0) as news:
            for batch in news.batches():
                print(f"{name}: new:", ", ".join(record.value for record in batch))
                news.commit(batch)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
