"""The jars of Apache Kafka's tests, in .tools/kafka-suites, and the classes of `java/`, which put `klamm serve` in the
place of Kafka's brokers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["JARS", "class_path", "fetch", "java_command"]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
POM = HERE / "pom.xml"
SOURCES = HERE / "java"
JARS = ROOT / ".tools" / "kafka-suites"
# Services that JUnit finds by itself: Kafka's own extension, which its build registers like this.
_SERVICES = {"org.junit.jupiter.api.extension.Extension": "org.apache.kafka.common.test.junit.ClusterTestExtensions"}
_FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-Djava.awt.headless=true"]


def fetch() -> None:
    """Have Maven copy the jars, unless those of this pom.xml are there."""
    done = JARS / "pom.xml"
    if done.exists() and done.read_bytes() == POM.read_bytes():
        return
    shutil.rmtree(JARS, ignore_errors=True)
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
    subprocess.run(["mvn", "-q", "-B", "-f", POM, *copy], check=True)
    shutil.copy(POM, done)


def class_path() -> str:
    """Compile `java/`, once for each version of it, and return a class path on which that precedes the jars."""
    (compiler,) = JARS.glob("ecj-*.jar")
    sources = sorted(SOURCES.rglob("*.java"))
    parts = [compiler.name.encode(), POM.read_bytes(), *(path.read_bytes() for path in sources)]
    classes = JARS / f"classes-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    if not classes.exists():
        unfinished = classes.with_suffix(f".{os.getpid()}")
        jars = ":".join(map(str, sorted(JARS.glob("*.jar"))))
        command: list[str | Path] = ["java", *_FLAGS, "-jar", compiler, "-17", "-nowarn", "-cp", jars]
        subprocess.run([*command, "-d", unfinished, SOURCES], check=True)
        services = unfinished / "META-INF" / "services"
        services.mkdir(parents=True)
        for service, implementation in _SERVICES.items():
            (services / service).write_text(f"{implementation}\n")
        unfinished.rename(classes)
    return f"{classes}:{JARS}/*"


def java_command(classes: str, main: str, *arguments: str, heap: str = "512m", **properties: str) -> list[str]:
    """The command that runs the class `main`; it logs errors to standard error."""
    logs = HERE.parent / "kafka" / "log4j2.xml"
    settings = {"log4j2.configurationFile": str(logs), "level": "ERROR", **properties}
    return [
        *("java", f"-Xmx{heap}", *_FLAGS),
        *(f"-D{name}={value}" for name, value in settings.items()),
        *("-cp", classes, main, *arguments),
    ]
