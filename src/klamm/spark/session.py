"""A SparkSession that works after `pip install 'klamm[spark]'`: Java is found, and what must be set is set.

    klamm.spark.session()                                       on this machine, all of its cores
    klamm.spark.session("events/", master="local[4]", spark_driver_memory="2g")
    klamm.spark.session(master="spark://host:7077")             a cluster whose workers see the store's files
    klamm.spark.session(remote="sc://host")                     Spark Connect
    klamm.spark.session(kafka=True)                             with Spark's Kafka connector, for kafka://

What is given goes before what is set here. A session that this process has already is given back, as Spark does; its
SQL settings are changed.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting, NotInstalled
from klamm.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PATH", "connector", "java_home", "session", "session_settings", "settings"]

PATH = "spark.klamm.path"
"""The setting that holds the store which read and write use when they are told none."""

_SCALA = "2.13"
_SQL = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(
    path: str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "klamm",
    kafka: bool | str | os.PathLike[str] = False,
    **conf: Any,
) -> SparkSession:
    """A session, ready for format("klamm").

    `path` is the store for `klamm.spark.read` and its siblings when they name none. `kafka` brings Spark's Kafka
    connector, by Maven, or from a directory that has its jars. Everything else is a setting of Spark's; dots are
    written as underscores: spark_sql_shuffle_partitions=8.
    """
    pyspark = _pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    elsewhere = remote or ("" if master else os.environ.get("SPARK_REMOTE", ""))
    if not elsewhere or elsewhere.startswith("local"):
        os.environ["JAVA_HOME"] = java_home()
    builder = pyspark.sql.SparkSession.builder
    if elsewhere:
        builder = builder.remote(elsewhere)
    elif master is not None:
        builder = builder.master(master)
    wanted = settings(path, master=master, kafka=kafka, version=pyspark.__version__, conf=conf)
    if elsewhere and not elsewhere.startswith("local"):
        wanted = {name: value for name, value in wanted.items() if name in _SQL or name in _spelled(conf)}
        if path is not None:
            wanted[PATH] = os.path.abspath(path)
    else:
        builder = builder.appName(app_name)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def session_settings(
    path: str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    kafka: bool | str | os.PathLike[str] = False,
    **conf: Any,
) -> dict[str, str]:
    """Return the settings of Spark that `session` would start with: for a program that Spark itself starts."""
    return settings(path, master=master, kafka=kafka, version=_pyspark().__version__, conf=conf)


def java_home() -> str:
    """Return the JAVA_HOME that `session` would use; a KlammError if there is no Java that Spark can run on."""
    return java.find().home


def settings(
    path: str | os.PathLike[str] | None,
    *,
    master: str | None,
    kafka: bool | str | os.PathLike[str],
    version: str,
    conf: Mapping[str, Any],
) -> dict[str, str]:
    """What a session is made with: ours, and over it what was given."""
    # By TCP, a task that reads began 40 ms late in every micro-batch (bench/README.md); by Unix sockets it does not.
    found = {**_SQL, "spark.python.unix.domain.socket.enabled": "true"}
    if master is None or master.startswith("local"):
        # Spark else asks for this machine's name, which may not lead back to it, or change with the network.
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Of 200 partitions, Spark's default, each costs a task in every micro-batch that counts something.
        found["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    if path is not None:
        found[PATH] = os.path.abspath(path)
    given = _spelled(conf)
    if kafka:
        name, value = connector(kafka, version)
        found[name] = f"{given.pop(name)},{value}" if name in given else value
    return {**found, **given}


def connector(kafka: bool | str | os.PathLike[str], version: str) -> tuple[str, str]:
    """The setting that brings Spark's Kafka connector."""
    if kafka is True:
        return "spark.jars.packages", f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}"
    directory = os.path.abspath(str(kafka))
    jars = sorted(glob.glob(f"{glob.escape(directory)}/*.jar"))
    if not any("spark-sql-kafka" in os.path.basename(jar) for jar in jars):
        raise InvalidSetting(
            f"kafka: {directory} has no jar of Spark's Kafka connector", hint="kafka=True fetches it by Maven"
        )
    return "spark.jars", ",".join(jars)


def _spelled(conf: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in conf.items():
        spelled = name if "." in name else name.replace("_", ".")
        if not spelled.startswith("spark."):
            raise InvalidSetting(
                f"{name}: is no setting of Spark's", hint="they begin with spark: spark_driver_memory='2g'"
            )
        found[spelled] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _pyspark() -> Any:
    try:
        import pyspark.sql
    except ImportError:
        raise NotInstalled.package("pyspark", "'klamm[spark]'") from None
    from klamm.spark.source import refuse_old_spark

    refuse_old_spark(pyspark.__version__)
    return pyspark
