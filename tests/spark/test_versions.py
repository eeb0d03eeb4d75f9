"""Other versions of PySpark than the one that is installed: source, sink and kills, in an environment of their own.

An environment has that PySpark and nothing else; all other packages are those of this one, behind it. The tests that
run there are tests of this directory, which name the version in their report. Those of PySpark 4.1 are fewer: Spark
does not tell a source where a micro-batch starts, so that none can be limited.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "source": ("test_internals.py", "test_source.py", "test_tables.py", "test_kafka_options.py"),
    "sink": ("test_sink.py", "test_exactly_once.py", "test_running_query.py"),
    "stream": ("test_stream.py", "test_checkpoints.py"),
}
VERSIONS = {"4.1": ("source", "sink"), "4.3": ("source", "sink", "stream")}
# PySpark 4.1 leaves sockets to the garbage collector.
QUIET = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


def environment(version: str, directory: Path) -> Path:
    """Return the Python of a new environment with that PySpark, from PyPI, before all packages of this one."""
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")
    if uv is None:
        pytest.skip("there is no uv")
    home = directory / f"pyspark-{version}"
    python = home / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, home], check=True, timeout=300)
    told = subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, f"pyspark=={version}.*"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if told.returncode:
        pytest.skip(f"PySpark {version} cannot be installed: {told.stderr.strip()[-200:]}")
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return python


@pytest.mark.soak  # minutes each
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("version", "part"), [(version, part) for version in VERSIONS for part in VERSIONS[version]])
def test_source_sink_and_kills_work_on_another_spark(version: str, part: str, tmp_path: Path) -> None:
    python = environment(version, tmp_path)
    program = "import pyspark; print(pyspark.__version__)"
    told = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.startswith(f"{version}.")
    tests = [str(Path(__file__).parent / name) for name in PARTS[part]]
    ran = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            *QUIET,
            "--basetemp",
            tmp_path / "tests",
            *tests,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2700,
    )
    print(ran.stdout[-8000:])
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
