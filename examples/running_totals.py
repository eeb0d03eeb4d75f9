"""A pipe with state: invoices and a running total for each account, exactly once, in two processes at the same time.

    python examples/running_totals.py events/

One of the two is killed while it works, and begins again. The totals are right all the same.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import klamm

ACCOUNTS, ORDERS = 10, 400


def bill(order: klamm.Record, total: klamm.State) -> Any:
    if order.value["amount"] == 0:
        return None
    total.value = (total.value or 0) + order.value["amount"]
    time.sleep(0.001)
    if total.value > 5_000:
        return {"invoices": order, "alarms": f"{order.key} owes {total.value}"}
    return {"invoices": order}


def work(path: str, wait_s: float) -> None:
    with klamm.open(path) as store:
        store.pipe("orders", bill, to=["invoices", "alarms"], state="totals", serde="json").run(wait=wait_s)


def main(path: str) -> None:
    processes = multiprocessing.get_context("spawn")
    with klamm.open(path) as store:
        for name in "orders", "invoices", "alarms":
            store.topics.create(name, partitions=4, exist_ok=True)
        with store.producer(serde="json") as producer:
            for n in range(ORDERS):
                for account in range(ACCOUNTS):
                    producer.send("orders", {"amount": n % 50}, key=f"account-{account}")

        workers = [processes.Process(target=work, args=(path, 3)) for _ in range(2)]
        for worker in workers:
            worker.start()
        time.sleep(2)
        workers[0].kill()
        workers.append(processes.Process(target=work, args=(path, 3)))
        workers[-1].start()
        for worker in workers:
            worker.join()

        invoices = sum(1 for _ in store.consumer("invoices", wait=0))
        totals = {record.key: record.value for record in store.consumer("totals", wait=0, serde="json")}
        print(f"{invoices:,} invoices of {ORDERS * ACCOUNTS:,} orders; {len(totals)} totals: {set(totals.values())}")
        print("alarms:", sum(1 for _ in store.consumer("alarms", wait=0)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
