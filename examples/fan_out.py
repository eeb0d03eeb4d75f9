"""Fan-out: three services read the same orders, each at its own pace, in a process of its own.

    python examples/fan_out.py events/

Billing, shipping and statistics are groups. Billing is killed on the way and started again: it goes on where it stood.
Statistics come late, and read from the first order on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import klamm

ORDERS = 3_000


def say(text: str) -> None:
    """Print a line in one piece: several processes write to this terminal."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


def service(path: str, name: str, most: int) -> None:
    """Handles orders until there are no more, or, to be killed, until it has handled so many."""
    with klamm.open(path) as store, store.consumer("orders", group=name, serde="json", wait=0.2) as orders:
        handled = 0
        for batch in orders.batches(max_records=100):
            orders.commit(batch)
            handled += len(batch)
            if handled >= most:
                say(f"{name}: killed after {handled}")
                os.kill(os.getpid(), signal.SIGKILL)
        say(f"{name}: handled {handled} orders")


def start(path: str, name: str, most: int = ORDERS * 2) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, path, name, str(most)])


def main(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", partitions=3, exist_ok=True)
        billing, shipping = start(path, "billing", 500), start(path, "shipping")
        with store.producer(serde="json") as producer:
            for n in range(ORDERS):
                producer.send("orders", {"id": n}, key=f"customer-{n % 7}")
        billing.wait()
        for running in (start(path, "billing"), shipping, start(path, "statistics")):
            running.wait()
        for name in store.groups:
            say(f"{name} is {store.groups.describe(name).lag} behind")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    elif len(sys.argv) == 4:
        service(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)
