"""One reader, many workers: in order for each account, side by side for different ones.

    python examples/one_reader_many_workers.py events/

Handlers that fail are tried again; what fails for good goes to payments.dlq, with the reason, and delays no others.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict

import klamm

ACCOUNTS, PAYMENTS, WORKERS = 20, 50, 4


def main(path: str) -> None:
    seen: defaultdict[bytes, list[int]] = defaultdict(list)
    threads: set[int] = set()

    def pay(record: klamm.Record) -> None:
        threads.add(threading.get_ident())
        if record.value == 13:
            raise ValueError("13 cannot be paid")
        seen[record.key].append(record.value)

    with klamm.open(path) as store:
        store.topics.create("payments", partitions=4, exist_ok=True)
        with store.producer(serde="json") as producer:
            for n in range(PAYMENTS):
                for account in range(ACCOUNTS):
                    producer.send("payments", n, key=f"account-{account}")

        with store.consumer("payments", group="bank", serde="json", wait=0) as payments:
            report = payments.run(pay, workers=WORKERS, on_error="dead-letter", retries=1, backoff=0.001)
        in_order = all(amounts == sorted(amounts) for amounts in seen.values())
        print(f"{report.done} paid by {len(threads)} workers; in order within each account: {in_order}")
        letters = list(store.dead_letters("payments.dlq"))
        print(f"{len(letters)} dead letters: {letters[0].error}: {letters[0].reason}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
