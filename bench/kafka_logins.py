"""What does a login by SCRAM-SHA-256 cost the server, and how many are there a second, beside Apache Kafka?

One client connects, logs in and disconnects, again and again; the hash of the password (4,096 iterations) is the
client's work, so the rate is mostly the client's, and the server's CPU for a thousand logins is the figure that counts.
"""

from __future__ import annotations

import time

import _harness as harness
import _kafka as kafka
import _secured as secured
from _processes import together
from tests.interop.raw import Raw
from tests.kafka.sasl_client import log_in


def logins(start, address: str, pid: int, count: int) -> tuple[float, float]:
    """Return logins a second, and the server's CPU seconds for a thousand."""
    start()
    began, cpu = time.perf_counter(), kafka.cpu_of(pid)
    for _ in range(count):
        with Raw(address) as raw:
            response = log_in(raw, secured.USER, secured.PASSWORD)
            assert response.error_code == 0, response
    wall, used = time.perf_counter() - began, kafka.cpu_of(pid) - cpu
    return count / wall, used / count * 1000


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0], count=(2_000, "logins a round"), warm=(5_000, "before the first round")
    )
    count = 20 if options.quick else options.count
    peer = f"Apache Kafka {kafka.version()}, warm"
    with secured.servers(quick=options.quick) as started:

        def run(each: secured.Secured, count: int) -> tuple[float, float]:
            (result,) = together([(logins, (each.sasl, each.server.pid, count))])
            return result

        for each in started.values():
            run(each, 20 if options.quick else options.warm)
        found = harness.interleave(
            {name: lambda each=each: run(each, count) for name, each in started.items()}, options.rounds, warm=False
        )
        for at, question, want, unit in (
            (0, "logins by SCRAM-SHA-256", harness.at_least(1), "logins/s"),
            (1, "logins by SCRAM-SHA-256, the server's CPU", harness.at_most(1), "s per thousand logins"),
        ):
            ours, theirs = ([each[at] for each in found[name]] for name in ("klamm", "kafka"))
            harness.answer(question, ours, peer, theirs, want, unit=unit, count=count)


if __name__ == "__main__":
    main()
