"""How fast does `klamm copy` move topics, beside cp and beside a bare client?

A store of --mib MiB of records of 1 KiB, in batches of 64 KiB. Into another directory, until it is on disk: MB/s beside
`cp -r` of the same directory and a sync. To `klamm serve`, in transactions: records a second beside a confluent-kafka
producer that sends the same records from memory, without transactions and offsets (--sent of them).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

import _harness as harness
import klamm

VALUE = os.urandom(512) * 2


def fill(path: str, mib: int) -> None:
    with klamm.open(path) as store:
        topic = store.topics.create("bench", 4)
        for number in range(mib * 1024 // 60):
            topic.append_many([VALUE] * 60, acks=1, partition=number % 4)


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], mib=(1024, "MiB of the store"), sent=(200_000, "records to a server")
    )
    mib, sent = (16, 2_000) if options.quick else (options.mib, options.sent)
    with harness.folder() as path:
        numbers = itertools.count()
        source = f"{path}/source"
        fill(source, mib)
        fill(f"{path}/some", sent // 1024)
        bytes_of = sum(os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(source) for name in names)

        def by_klamm() -> float:
            target = f"{path}/klamm-{next(numbers)}"
            with harness.clock(bytes_of) as sample:
                klamm.copy(source, target)
            shutil.rmtree(target)
            return sample.rate / 1e6

        def by_cp() -> float:
            target = f"{path}/cp-{next(numbers)}"
            with harness.clock(bytes_of) as sample:
                subprocess.run(["cp", "-r", source, target], check=True)
                subprocess.run(["sync", "-f", target], check=True)
            shutil.rmtree(target)
            return sample.rate / 1e6

        found = harness.interleave({"klamm": by_klamm, "cp": by_cp}, options.rounds)
        harness.answer(
            "copy into a directory", found["klamm"], "cp -r and sync", found["cp"], harness.at_least(0.7), unit="MB/s"
        )

        def to_server() -> float:
            target = f"{path}/served-{next(numbers)}"
            with klamm.server(target) as address, harness.clock(sent) as sample:
                klamm.copy(f"{path}/some", f"kafka://{address}")
            shutil.rmtree(target)
            return sample.rate

        def bare() -> float:
            from confluent_kafka import Producer

            target = f"{path}/bare-{next(numbers)}"
            with klamm.server(target) as address:
                with klamm.open(target) as store:
                    store.topics.create("bench", 4)
                producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "compression.type": "lz4"})
                with harness.clock(sent) as sample:
                    for number in range(sent):
                        while True:
                            try:
                                producer.produce("bench", VALUE, partition=number % 4)
                            except BufferError:
                                producer.poll(0.1)
                            else:
                                break
                    producer.flush()
            shutil.rmtree(target)
            return sample.rate

        found = harness.interleave({"klamm": to_server, "bare": bare}, options.rounds)
        harness.answer(
            "copy to a server",
            found["klamm"],
            "a bare producer",
            found["bare"],
            harness.at_least(0.5),
            unit="records/s",
        )


if __name__ == "__main__":
    main()
