"""What a power cut interrupts: one transaction after the other, each moving a record from `in` to `out`, twice.

    python transaction_workload.py ROOT LIFE

It notes in the trace when the topics are there, which record it is about to commit, and which it was told is committed.
It goes on where a store stands that is there already.
"""

from __future__ import annotations

import sys

import klamm
from tests.crash.workload import note

RECORDS = 12


def main(root: str, life: int) -> None:
    with klamm.open(f"{root}/events") as store:
        if life == 1:
            settings = {"segment.bytes": 300, "index.interval.bytes": 100}
            store.topics.create("in")
            store.topics.create("out", 2, settings)
            store.append_many("in", [b"%d" % number for number in range(RECORDS)])
        note(ready=life)
        with store.consumer("in", group="g", wait=0) as consumer:
            aborted = False
            for batch in consumer.batches(1):
                number = batch.begin
                with consumer.transaction("mover" if life == 2 else None, batch_bytes=(1, 1000)[number % 2]) as tx:
                    for partition in (0, 1):
                        tx.send("out", batch[0].value, partition=partition)
                    tx.commit_offsets(batch)
                    tx.once("mover", number)
                    aborted = number % 3 == 2 and not aborted
                    if aborted:  # then it comes again
                        tx.abort()
                    else:
                        note(committing=number)
                if not aborted:
                    note(committed=number)
                if number == RECORDS // 2 and life == 1:
                    store.maintain()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
