"""How soon after its start does the Kafka door answer, and in how much memory does it live, beside Apache Kafka?

    start    from starting the process, on a store that is there and empty, until ApiVersions and Metadata are answered
    idle     its resident set two seconds later
    loaded   the same after millions of records of 100 B and of 1 KiB went in and out

Kafka runs with the heap that its start script gives it (1 GiB at most).
"""

from __future__ import annotations

import os
import time

import _harness as harness
import _kafka as kafka


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0], count=(3_000_000, "records of 100 B, and a third of them of 1 KiB")
    )
    count = 1000 if options.quick else options.count
    peer = f"Apache Kafka {kafka.version()}"
    with harness.folder() as path:
        for name in ("klamm", "kafka"):
            os.mkdir(f"{path}/{name}")
        properties = kafka.format_kafka(f"{path}/kafka")
        starts = {
            "klamm": lambda: kafka.start_klamm(f"{path}/klamm"),
            "kafka": lambda: kafka.start_kafka(properties, quick=options.quick),
        }

        def life(name: str, loaded: bool) -> tuple[float, float, float]:
            """Seconds to the first answer, MB idle, MB loaded."""
            server = starts[name]()
            try:
                server.wait()
                time.sleep(0 if options.quick else 2)
                idle = server.memory()
                if loaded:
                    kafka.pass_through(server, 100, count)
                    kafka.pass_through(server, 1024, count // 3)
                return server.answered_after, idle, server.memory()
            finally:
                server.stop()

        lives = harness.interleave(
            {name: lambda name=name: life(name, False) for name in starts}, options.rounds, warm=not options.quick
        )
        for at, question, want, unit in (
            (0, "from start to the first answer", harness.at_most(0.5, "figure"), "s"),
            (1, "memory, idle", harness.at_most(0.1), "MB"),
        ):
            ours, theirs = ([each[at] for each in lives[name]] for name in ("klamm", "kafka"))
            harness.answer(question, ours, peer, theirs, want, unit=unit)
        ours, theirs = ([life(name, True)[2] for _ in range(1 if options.quick else 2)] for name in ("klamm", "kafka"))
        harness.answer("memory, loaded", ours, peer, theirs, harness.at_most(0.1), unit="MB", count=count)


if __name__ == "__main__":
    main()
