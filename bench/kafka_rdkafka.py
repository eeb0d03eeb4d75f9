"""How many records a second pass the Kafka door when the client is plain C, beside Apache Kafka?

rdkafka_performance, the program that librdkafka is measured with, puts and gets records of 100 B and 1 KiB, `acks=1`,
one partition. It costs a fraction of what a client in Python does, so that the server is what is measured; its CPU is
told too. The program is built from the source that the crate rdkafka-sys carries, once, into .tools/rdkafka.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import _harness as harness
import _kafka as kafka

CRATE = "=4.10.0"
PROGRAM = harness.ROOT / ".tools" / "rdkafka" / "rdkafka_performance"


def program() -> Path:
    """Built if it is not there: takes a minute."""
    if not PROGRAM.exists():
        if shutil.which("cargo") is None or shutil.which("make") is None:
            raise SystemExit(f"there is no {PROGRAM.relative_to(harness.ROOT)}, and no cargo and make to build it with")
        with tempfile.TemporaryDirectory() as path:
            Path(path, "src").mkdir()
            Path(path, "src", "main.rs").write_text("fn main() {}\n")
            Path(path, "Cargo.toml").write_text(
                '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n'
                f'[dependencies]\nrdkafka-sys = "{CRATE}"\n'
            )
            quietly(["cargo", "vendor", "-q", "vendored"], path)
            source = f"{path}/vendored/rdkafka-sys/librdkafka"
            without = [f"--disable-{each}" for each in ("ssl", "gssapi", "curl", "zstd", "lz4-ext")]
            quietly(["bash", "./configure", *without], source)
            quietly(["make", "-j2", "libs"], source)
            quietly(["make", "-C", "examples", "rdkafka_performance"], source)
            PROGRAM.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{source}/examples/rdkafka_performance", PROGRAM)
    return PROGRAM


def quietly(command: list[str], where: str) -> None:
    run = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}: {run.stdout[-1000:]}{run.stderr[-3000:]}")


def run(server: kafka.Server, count: int, *arguments: str) -> kafka.Load:
    before = server.cpu()
    command = [str(program()), "-b", server.address, "-c", str(count), "-q", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    cpu = server.cpu() - before
    text = said.stdout + said.stderr
    done = re.findall(r"% (\d+) messages .*?(?:produced|consumed).*?in (\d+)ms", text)
    if not done or int(done[-1][0]) < count:
        raise RuntimeError(f"{' '.join(command)}: {text[-3000:]}")
    return kafka.Load(count, int(done[-1][1]) / 1000, cpu)


def pass_through(server: kafka.Server, size: int, count: int) -> tuple[kafka.Load, kafka.Load]:
    topic = server.topic()
    put = run(server, count, "-P", "-t", topic, "-p", "0", "-s", str(size), "-a", "1", "-X", "linger.ms=5")
    got = run(server, count, "-C", "-t", topic, "-p", "0", "-o", "beginning")
    server.delete(topic)
    return put, got


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(5_000_000, "records of 100 B a round"),
        warm=(5_000_000, "before the first round"),
    )
    program()
    kafka.compare(options, "rdkafka_performance", pass_through, part=5, few=10_000)


if __name__ == "__main__":
    main()
