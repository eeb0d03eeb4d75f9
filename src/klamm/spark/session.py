"""A SparkSession that works after `pip install 'klamm[spark]'`: Java is found, and what must be set is set.

    klamm.spark.session()                                       on this machine, all of its cores
    klamm.spark.session("events/", master="local[4]", spark_driver_memory="2g")
    klamm.spark.session(master="spark://host:7077")             a cluster whose workers see the store's files
    klamm.spark.session(remote="sc://host")                     Spark Connect
    klamm.spark.session(kafka=True)                             with Spark's Kafka connector, for kafka://

The JVM of a session on this machine maps a class archive (class_archive.py), which lets it start in less time.

What the caller sets wins. Next come the settings that the user made outside of the program: what spark-submit was given
if it has started the program, else spark-defaults.conf and PYSPARK_SUBMIT_ARGS (own_settings.py). Those of this module
come last. A session that this process has
already is returned, as Spark does; its SQL settings are changed.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting, NotInstalled
from klamm.spark import class_archive, java, own_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PATH", "connector", "find_own", "java_home", "session", "session_settings", "settings", "use"]

PATH = "spark.klamm.path"
"""The setting that names the store of reads and writes, and of format("klamm"), that name none."""

_SCALA = "2.13"
_GATEWAY = "PYSPARK_GATEWAY_PORT"  # set by spark-submit alone: where its JVM listens
_SQL = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}

# Spark's default starts ten processes (chmod, readlink) for each file of a checkpoint on a local disk; this one, two.
# Both write a file beside its name and rename it.
_LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def session(
    path: str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str | None = None,
    kafka: bool | str | os.PathLike[str] = False,
    **conf: Any,
) -> SparkSession:
    """Return a session, ready for format("klamm").

    `path` is the store of a read or a write that names none. `app_name` is "klamm" unless spark-submit was given a
    name. `kafka` brings Spark's Kafka connector, by Maven, or from a directory that has its jars. Everything else is a
    setting of Spark's; dots are written as underscores: spark_sql_shuffle_partitions=8.
    """
    pyspark = _pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elsewhere = remote or ("" if master else os.environ.get("SPARK_REMOTE", ""))
    submitted = {} if elsewhere else _submitted(pyspark)
    own = submitted
    if not submitted and (not elsewhere or elsewhere.startswith("local")):
        os.environ["JAVA_HOME"] = java_home()
        own = find_own()
    builder = pyspark.sql.SparkSession.builder
    if elsewhere:
        builder = builder.remote(elsewhere)
    elif master is not None:
        builder = builder.master(master)
    wanted = settings(path, master=master, kafka=kafka, version=pyspark.__version__, conf=conf, own=own)
    if elsewhere and not elsewhere.startswith("local"):
        wanted = {name: value for name, value in wanted.items() if name in _SQL or name in _spelled(conf)}
        if path is not None:
            wanted[PATH] = _named(path)
    elif app_name is not None or "spark.app.name" not in own:
        builder = builder.appName(app_name or "klamm")
    if not elsewhere and not submitted and _is_local(master or own.get("spark.master")):
        _add_class_archive(pyspark, wanted, own)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    if made.conf.get(PATH, None) is not None:
        use(made)
    return made


def use(spark: SparkSession, path: str | os.PathLike[str] | None = None) -> SparkSession:
    """Make a session of yours use the store at `path` where a query names none, and return the session.

    `path` becomes the setting spark.klamm.path; without it, the setting that the session has counts. `session` does
    this by itself.
    """
    _pyspark()
    from klamm.spark.source import register

    if path is not None:
        spark.conf.set(PATH, _named(path))
    found = spark.conf.get(PATH, None)
    if found is None:
        raise InvalidSetting(f"{PATH} is not set", hint="name the store: klamm.spark.use(spark, 'events/')")
    register(spark, found)
    return spark


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
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of a session: the caller's, and ours where `own`, the user's outside of the program, has
    none.
    """
    own = own or {}
    if master is None:
        master = own.get("spark.master")
    # By TCP, a task that reads begins late in every micro-batch (bench/README.md); by Unix sockets it does not.
    found = {**_SQL, "spark.python.unix.domain.socket.enabled": "true"}
    if _is_local(master):
        # Spark else asks for this machine's name, which may not lead back to it, or change with the network.
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Of 200 partitions, Spark's default, each costs a task in every micro-batch that counts something.
        found["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
        found |= _LOCAL_CHECKPOINTS
    found = {name: value for name, value in found.items() if name not in own}
    if path is not None:
        found[PATH] = _named(path)
    given = _spelled(conf)
    _check_switch(given)
    if kafka:
        name, value = connector(kafka, version)
        more = given.pop(name, own.get(name))
        found[name] = value if more is None else f"{more},{value}"
    return {**found, **given}


def _submitted(pyspark: Any) -> dict[str, str]:
    """Return the settings that spark-submit has given to this program; none if it was started otherwise."""
    if _GATEWAY not in os.environ:
        return {}
    pyspark.SparkContext._ensure_initialized()  # connects to the JVM that spark-submit runs
    return dict(pyspark.SparkConf().getAll())


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def find_own() -> dict[str, str]:
    """Return the settings that the user made outside of the program, for sessions whose Java this process starts."""
    return own_settings.find(_spark_home(_pyspark()))


def _spark_home(pyspark: Any) -> str:
    return os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)


def _add_class_archive(pyspark: Any, wanted: dict[str, str], own: Mapping[str, str]) -> None:
    """Make the JVM, if this process has none yet, map a class archive, or write one when it ends."""
    known = {**own, **wanted}
    if known.get(class_archive.SETTING, "true") == "false":
        return
    if pyspark.SparkContext._gateway is not None:
        return
    options = class_archive.java_options(java.find(), _spark_home(pyspark), pyspark.__version__, known)
    if options is not None:
        wanted[class_archive.OPTION] = " ".join(filter(None, [options, known.get(class_archive.OPTION)]))


def connector(kafka: bool | str | os.PathLike[str], version: str) -> tuple[str, str]:
    """Return the setting that adds Spark's Kafka connector."""
    if kafka is True:
        return "spark.jars.packages", f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}"
    directory = os.path.abspath(str(kafka))
    jars = sorted(glob.glob(f"{glob.escape(directory)}/*.jar"))
    if not any("spark-sql-kafka" in os.path.basename(jar) for jar in jars):
        raise InvalidSetting(
            f"kafka: {directory} has no jar of Spark's Kafka connector", hint="kafka=True fetches it by Maven"
        )
    return "spark.jars", ",".join(jars)


def _named(path: str | os.PathLike[str]) -> str:
    """Return the address of a server as it is, and a directory as an absolute path."""
    text = os.fspath(path)
    return text if text.startswith("klamm://") else os.path.abspath(text)


def _check_switch(given: Mapping[str, str]) -> None:
    value = given.get(class_archive.SETTING, "true")
    if value not in ("true", "false"):
        raise InvalidSetting(f"{class_archive.SETTING}: {value!r} is invalid", hint="expected true or false")


def _spelled(conf: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in conf.items():
        spelled = name if "." in name else name.replace("_", ".")
        if not spelled.startswith("spark."):
            raise InvalidSetting(
                f"{name}: not a setting of Spark", hint="they begin with spark: spark_driver_memory='2g'"
            )
        found[spelled] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _pyspark() -> Any:
    try:
        import pyspark.sql
    except ImportError:
        raise NotInstalled.package("pyspark", "'klamm[spark]'") from None
    from klamm.spark.source import check_spark_version

    check_spark_version(pyspark.__version__)
    return pyspark
