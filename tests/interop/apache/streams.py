"""Kafka Streams' StreamsSmokeTest with exactly_once_v2, while its processors and the server are killed.

Its driver writes numbers for 90 s, and then reads what the processors made of them: each sum, count and average has to
be exactly right, and no transaction may be left open.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.cases import seed_of
from tests.interop.apache.jars import java_command
from tests.interop.apache.processes import Program, killed_now_and_then
from tests.interop.raw import Raw

__all__ = ["main"]

MAIN = "org.apache.kafka.streams.tests.StreamsSmokeTest"
TOPICS = (
    *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum"),
    *("sws-raw", "sws-suppressed", "cnt", "avg", "tagg"),
)
PARTITIONS = 5
PROCESSORS = 2
BETWEEN_KILLS_S = (6.0, 12.0)
KILLING_S = 80.0
DRIVER_S = 600.0


def main(classes: str) -> int:
    seed = seed_of()
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="klamm-streams-"))
    print(f"output in {directory}", flush=True)
    with killed_now_and_then(directory) as (server, programs):
        with Raw(server.address) as raw:
            for topic in TOPICS:
                raw.create(topic, PARTITIONS)

        def program(name: str, work: str) -> Program:
            properties = directory / f"{name}.properties"
            properties.write_text(
                f"bootstrap.servers={server.address}\nprocessing.guarantee=exactly_once_v2\n"
                f"state.dir={directory / name}\nsession.timeout.ms=6000\nheartbeat.interval.ms=1000\n"
            )
            programs.append(Program(name, java_command(classes, MAIN, str(properties), work), directory))
            return programs[-1]

        processors = [program(f"processor-{number}", "process") for number in range(PROCESSORS)]
        driver = program("driver", "run")
        kills = {"processor": 0, "server": 0}
        end = time.monotonic() + KILLING_S
        while time.monotonic() < end and driver.process.poll() is None:
            time.sleep(chance.uniform(*BETWEEN_KILLS_S))
            if chance.random() < 0.4:
                server.restart("kill")
                kills["server"] += 1
            else:
                victim = chance.choice(processors)
                victim.kill()
                victim.start()
                kills["processor"] += 1
        status = driver.process.wait(DRIVER_S)
    verdict = [line for line in driver.output.splitlines() if line.isupper() or "SUCCESS" in line or "FAIL" in line]
    print("\n".join(verdict[-20:]))
    print(f"StreamsSmokeTest: exit code {status}, kills {kills}, KLAMM_SEED={seed}")
    passed = status == 0 and "SUCCESS" in driver.output and min(kills.values()) > 0
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit("run it by python -m tests.interop.apache streams")
