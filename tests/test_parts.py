"""tests/parts.py itself: what it prints while parts run, and what it does about one that hangs or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import parts
from tests.procs import until

BARE = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"
}  # without hypothesis, which none of these uses, a pytest starts in half the time
RUN = """
import pathlib, sys, threading, time
from tests import parts
folder, names, *arguments = sys.argv[1:]

def lose_patience():
    while not pathlib.Path(folder, "hangs").exists():
        time.sleep(0.01)
    parts.SILENCE_S = 0.5

threading.Thread(target=lose_patience, daemon=True).start()
parts.PROGRESS_S, parts.MEMORY = 0.2, pathlib.Path("/nowhere")
PREPARE
mine = [parts.Part(name, (f"{folder}/{name}",)) for name in names.split(",")]
sys.exit(parts.interruptible(lambda: parts.main(arguments, mine)))
"""


class Started:
    """parts.py with parts of a test's own: a file of tests for each name."""

    def __init__(self, directory: Path, arguments: tuple[str, ...], prepare: str, **files: str) -> None:
        self._directory = directory
        for name, text in files.items():
            (directory / name).mkdir()
            (directory / name / f"test_{name}.py").write_text(textwrap.dedent(text))
        self._output = directory / "output"
        command = [sys.executable, "-c", RUN.replace("PREPARE", prepare), str(directory), ",".join(files), *arguments]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=parts.ROOT,
                stdout=output,
                stderr=output,
                env={**os.environ, **BARE, "TMPDIR": str(directory)},
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def shows(self, text: str) -> None:
        until(lambda: text in self.output or self.process.poll() is not None, text)
        assert text in self.output, self.output

    def up(self, name: str) -> None:
        """Let tests go on that wait for that file."""
        (self._directory / name).touch()

    def ends(self, code: int) -> str:
        assert self.process.wait(60) == code, self.output
        return self.output


@contextmanager
def started(directory: Path, *arguments: str, prepare: str = "", **files: str) -> Iterator[Started]:
    """`prepare` is run before the parts."""
    run = Started(directory, arguments, prepare, **files)
    try:
        yield run
    finally:
        run.process.terminate()
        run.process.wait(60)


WAITS = """
import pathlib, time
def test_{name}():
    while not pathlib.Path(__file__).parents[1].joinpath("go").exists():
        time.sleep(0.01)
"""
FAILS = """
def test_good(): pass
def test_bad():
    print("what it printed")
    assert 1 == 2
"""


def test_failures_and_progress_are_shown_while_parts_run(tmp_path: Path) -> None:
    with started(tmp_path, first=WAITS.format(name="slow"), second=FAILS + WAITS.format(name="later")) as run:
        run.shows("second: test_second.py::test_bad")
        run.shows("assert 1 == 2")
        run.shows("what it printed")
        run.shows("second 2/3")
        run.shows("1 failed")
        run.shows("s in test_first.py::test_slow")
        assert "\n---- " not in run.output
        run.up("go")
        output = run.ends(1)
    assert "---- first: " in output and "1 passed" in output
    assert output.count("E       assert 1 == 2") == 1
    assert "FAILED" in output and output.endswith("test: failed: second\n")


def test_a_file_that_cannot_be_collected_is_shown_and_fails(tmp_path: Path) -> None:
    with started(tmp_path, broken="import nothing_of_that_name") as run:
        assert "No module named 'nothing_of_that_name'" in run.ends(1)


def test_a_part_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    with started(tmp_path, first=WAITS.format(name="of_no_end")) as run:
        run.shows("s in test_first.py::test_of_no_end")
        run.up("hangs")
        output = run.ends(1)
    assert "first: hangs: test_first.py::test_of_no_end" in output
    assert "in test_of_no_end" in output, "tracebacks of its threads"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_parts(tmp_path: Path, number: int) -> None:
    pid = "import os, pathlib\npathlib.Path(__file__ + '.pid').write_text(str(os.getpid()))\n"
    with started(tmp_path, one=pid + WAITS.format(name="one"), two=pid + WAITS.format(name="two")) as run:
        run.shows("s in test_one.py::test_one")
        run.shows("s in test_two.py::test_two")
        run.process.send_signal(number)
        assert "test: interrupted" in run.ends(parts.INTERRUPTED)
    for file in tmp_path.glob("*/*.pid"):
        assert not Path("/proc", file.read_text()).exists()


def meets(other: str) -> str:
    """A test that ends when the other part has begun."""
    return f"""
import pathlib, time
def test_meets():
    folder = pathlib.Path(__file__).parents[1]
    (folder / "begun" / pathlib.Path(__file__).stem).touch()
    while not (folder / "begun" / "test_{other}").exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("is_idle", [True, False])
def test_more_parts_run_at_once_only_while_cores_are_idle(tmp_path: Path, is_idle: bool) -> None:
    (tmp_path / "begun").mkdir()
    limits = "AT_ONCE, parts.IDLE_MORE, parts.IDLE_S, parts.IDLE_SHARE = 1, 1, 0.1"
    limits = f"parts.{limits}, {-1.0 if is_idle else 1.0}"  # shares that every machine reaches, or none
    with started(tmp_path, prepare=limits, one=meets("two"), two=meets("one")) as run:
        if not is_idle:
            run.shows("s in test_one.py::test_meets; later: two")
            assert not (tmp_path / "begun" / "test_two").exists()
            (tmp_path / "begun" / "test_two").touch()
        assert run.ends(0).count("1 passed") == 2


def test_how_idle_cores_were_is_read_since_the_last_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "STAT", tmp_path / "stat")
    monkeypatch.setattr(parts, "IDLE_S", 0.0)
    ticks = {
        "user": 50,
        "nice": 0,
        "system": 50,
        "idle": 0,
        "iowait": 0,
        "irq": 0,
        "softirq": 0,
        "steal": 0,
        "guest": 7,
    }

    def tick(**more: int) -> None:
        for name, count in more.items():
            ticks[name] += count
        parts.STAT.write_text(f"cpu  {' '.join(map(str, ticks.values()))}\ncpu0 1 2 3\n")

    tick()
    idle = parts.Idle()
    tick(user=70, idle=20, iowait=10)
    assert idle.is_long()
    tick(user=75, system=20, idle=5)
    assert not idle.is_long(), "what was idle before counts no more"
    tick(idle=100)
    monkeypatch.setattr(parts, "IDLE_S", 3600.0)
    assert not idle.is_long(), "too soon"
    parts.STAT.unlink()
    monkeypatch.setattr(parts, "IDLE_S", 0.0)
    assert not parts.Idle().is_long()


def test_with_a_name_or_a_path_there_is_one_pytest(tmp_path: Path) -> None:
    path = tmp_path / "two" / "test_two.py"
    with started(tmp_path, str(path), "-k", "good", one="def test_good(): pass", two=FAILS) as run:
        output = run.ends(0)
    assert "1 passed, 1 deselected" in output and "----" not in output


def test_every_test_is_in_one_part_and_quick_leaves_out_those_that_need_java() -> None:
    def has(part: parts.Part, file: Path) -> bool:
        chosen = parts.folders_of(part)
        ignored = [path.removeprefix("--ignore=") for path in chosen if path.startswith("--ignore=")]
        mine = [path for path in chosen if not path.startswith("--")]
        return any(file.is_relative_to(path) for path in mine) and not any(
            file.is_relative_to(path) for path in ignored if not any(Path(each).is_relative_to(path) for each in mine)
        )

    for file in parts.HERE.rglob("test_*.py"):
        (part,) = [part for part in parts.PARTS if has(part, file)]
        assert part.quick == (file.relative_to(parts.HERE).parts[0] not in ("spark", "interop", "cluster", "crash"))
