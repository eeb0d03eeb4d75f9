"""Results of bench/ can be trusted: lines stay, name their sources, and are marked where they must not count."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.procs import until

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
PARTS = ["_collect.py", "_harness.py", "_machine.py", "_results.py"]

RATE = '''"""How fast?"""
import _harness as harness
harness.arguments("How fast?")
harness.answer("how fast", [3.0, 4.0], "peer 1.2.3", [1.0, 1.0], harness.at_least(2.5), unit="records/s")
'''
OLD = {"script": "rate", "question": "how fast", "figure": 9.0, "unit": "records/s", "peer": "peer 1.2.2"}
OLD |= {"peer_figure": 3.0, "ratio": 3.0, "ratio_range": [2.0, 4.0], "want": "ratio >= 2.5", "ok": True}
OLD |= {"commit": "e76a387+", "at": "2026-11-15T10:00:00+00:00"}
"""A line from before lines had a tree."""


@pytest.fixture(autouse=True)
def bench_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


class Repository:
    """A checkout with the collector and scripts of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bench = root / "bench"
        self.results = self.bench / "results"
        self.bench.mkdir(parents=True)
        for name in PARTS:
            shutil.copy(BENCH / name, self.bench)
        self.look_before(0.05)
        (root / "src").mkdir()
        (root / "src" / "code.py").write_text("# measured\n")
        (root / ".gitignore").write_text("__pycache__\nbuild\n")
        self.write("rate", RATE)
        self.git("init", "-q")

    def look_before(self, seconds: float) -> None:
        """Let the collector see for that long how busy others are before it starts."""
        text = (BENCH / "_machine.py").read_text()
        assert "BEFORE_S = 0.5" in text
        (self.bench / "_machine.py").write_text(text.replace("BEFORE_S = 0.5", f"BEFORE_S = {seconds}"))

    def write(self, script: str, text: str) -> None:
        (self.bench / f"{script}.py").write_text(text)

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        run = subprocess.run(["git", *identity, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-q", "-m", "commit")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.bench / "_collect.py"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def collect(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code of the collector, and what it printed."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=60)
        return process.returncode, printed

    def text(self) -> str:
        return "".join(path.read_text() for path in sorted(self.results.glob("*.jsonl")))

    def lines(self) -> list[dict[str, Any]]:
        paths = sorted(self.results.glob("*.jsonl"))  # two, if midnight comes between
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "checkout")


@pytest.fixture
def burner() -> Iterator[None]:
    """A process that is not the benchmark's and keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


# ---- lines are appended, and say where they are from


def test_a_script_that_runs_again_leaves_its_earlier_lines_as_they_were(repository: Repository) -> None:
    repository.commit()
    assert repository.collect("rate")[0] == 0
    (path,) = repository.results.iterdir()
    path.write_text(json.dumps(OLD) + "\n" + path.read_text().removesuffix("\n"))  # an editor took the last newline
    before = path.read_text()
    assert repository.collect("rate")[0] == 0
    assert repository.text().startswith(before)
    assert [line.get("tree") for line in repository.lines()] == [None, *[repository.git("rev-parse", "HEAD:src")] * 2]
    assert [line["commit"] for line in repository.lines()][1:] == [repository.git("rev-parse", "--short", "HEAD")] * 2
    assert [line.get("dirty") for line in repository.lines()] == [None, False, False]  # results alone change nothing


def test_changed_sources_are_refused_or_marked(repository: Repository) -> None:
    repository.commit()
    (repository.bench / "new.py").write_text(RATE)  # not even committed
    code, printed = repository.collect("rate")
    assert code == 2 and "--allow-dirty" in printed and repository.text() == ""
    code, printed = repository.collect("rate", "--allow-dirty")
    assert code == 0 and "of 1 goals 0 met" in printed
    assert [line["dirty"] for line in repository.lines()] == [True]


def test_sources_that_change_during_a_run_are_marked(repository: Repository) -> None:
    change = "import pathlib\npathlib.Path(harness.ROOT, 'src', 'code.py').write_text('# changed')\nharness.answer("
    repository.write("rate", RATE.replace("harness.answer(", change))
    repository.commit()
    assert repository.collect("rate")[0] == 0
    assert [line["dirty"] for line in repository.lines()] == [True]


def test_a_script_that_fails_keeps_its_lines_and_the_others_run(repository: Repository) -> None:
    repository.write("breaks", RATE + "raise SystemExit(3)\n")
    repository.write("chats", RATE + "print('hello')\n")
    repository.commit()
    code, printed = repository.collect()
    assert code == 1
    assert [line["script"] for line in repository.lines()] == ["breaks", "chats", "rate"]
    assert "FAILED: breaks ended with exit code 3" in printed and "FAILED: chats printed 'hello'" in printed


def test_a_line_is_written_as_it_comes_and_survives_the_end_of_the_collector(repository: Repository) -> None:
    wait = "import os, pathlib, signal\npathlib.Path(harness.ROOT, 'build', 'pid').write_text(str(os.getpid()))\n"
    repository.write("rate", RATE + wait + "signal.pause()\n")
    repository.commit()
    pid_file = repository.root / "build" / "pid"
    with repository.start("rate") as process:
        pid = until(lambda: pid_file.exists() and int(pid_file.read_text() or 0), "the script has answered")
        until(lambda: repository.text().endswith("\n"), "its line is there")
        process.terminate()
    assert len(repository.lines()) == 1
    assert not Path(f"/proc/{pid}").exists()  # the script does not go on


def test_a_quick_run_records_nothing(repository: Repository) -> None:
    repository.commit()
    code, printed = repository.collect("--quick", "rate")
    assert code == 0 and "how fast" in printed
    assert repository.text() == ""


# ---- a busy machine


@pytest.mark.usefixtures("burner")
def test_a_line_is_busy_and_meets_no_goal_while_another_process_uses_a_core(repository: Repository) -> None:
    repository.look_before(0.5)  # a process may get nothing for tens of milliseconds where CPU time is rationed
    repository.commit()
    code, printed = repository.collect("rate")
    assert code == 0 and "WARNING: others use" in printed and "of 1 goals 0 met" in printed, printed
    (line,) = repository.lines()
    assert line["busy"] is True and line["ok"] == "yes"
    assert max(line["machine"]["others_before"], line["machine"]["others"]) > 0.2


def test_the_benchmarks_own_processes_and_the_kernels_threads_are_not_others() -> None:
    import _machine

    kernel, ours = 2, 100
    parents = {1: 0, kernel: 0, 3: kernel, 50: 1, ours: 50, 101: ours, 102: 101, 200: 50, 201: 200}
    processes = {pid: _machine.Process(parent, 1.0) for pid, parent in parents.items()}
    assert _machine.others_of(processes, ours) == {1, 50, 200, 201}


@pytest.mark.usefixtures("burner")
def test_a_running_process_is_an_other_of_its_sibling_and_not_of_its_parent() -> None:
    import _machine

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        processes = _machine.read_processes()
        siblings = {pid for pid, process in processes.items() if process.parent == os.getpid() and pid != child.pid}
        assert siblings and siblings <= _machine.others_of(processes, child.pid)
        assert not siblings & _machine.others_of(processes, os.getpid())
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize(("others", "steal", "busy"), [(0.1, 0.05, False), (0.25, 0.0, True), (0.1, 0.15, True)])
def test_a_tenth_of_the_machine_is_busy(others: float, steal: float, busy: bool) -> None:
    import _machine

    assert _machine.Reading(others, steal).is_busy(cores=2) is busy


def test_cpu_of_a_process_that_came_and_went_is_in_that_of_its_parent() -> None:
    import _machine

    before = _machine.read_processes()[os.getpid()].cpu
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert _machine.read_processes()[os.getpid()].cpu - before > 0.1  # in ticks


# ---- three values


@pytest.mark.parametrize(
    ("want", "least", "most", "ok"),
    [
        (">= 2", 2.0, 3.0, "yes"),
        (">= 2", 1.9, 3.0, "unsure"),
        (">= 2", 1.0, 1.9, "no"),
        ("<= 2", 1.0, 2.0, "yes"),
        ("<= 2", 1.0, 2.1, "unsure"),
        ("<= 2", 2.1, 3.0, "no"),
    ],
)
def test_a_goal_is_met_by_the_whole_range_or_unsure(want: str, least: float, most: float, ok: str) -> None:
    import _results

    assert _results.judge(_results.Want(want), least, most) == ok
    assert _results.judge(None, least, most) is None


def test_a_line_is_judged_by_what_its_goal_is_of(repository: Repository) -> None:
    answers = [
        ("[3.0, 4.0]", "harness.at_least(2.5)"),
        ("[2.0, 4.0]", "harness.at_least(2.5)"),
        ("[1.0, 2.0]", "harness.at_least(2.5)"),
        ("[2.0, 4.0]", 'harness.at_most(4, "figure")'),
        ("[2.0, 4.0]", 'harness.at_most(3, "figure")'),
        ("[2.0, 4.0]", "None"),
    ]
    asked = [f'harness.answer("q", {ours}, "peer", [1.0, 1.0], {want}, unit="s")\n' for ours, want in answers]
    repository.write("rate", RATE.partition("harness.answer")[0] + "".join(asked))
    repository.commit()
    _, printed = repository.collect("rate")
    assert [line["ok"] for line in repository.lines()] == ["yes", "unsure", "no", "yes", "unsure", None]
    assert [line["figure_range"] for line in repository.lines()][:2] == [[3.0, 4.0], [2.0, 4.0]]
    shown = [word for row in printed.splitlines() if "·" in row for word in row.split() if word in ("ok", "?", "MISS")]
    assert shown == ["ok", "?", "MISS", "ok", "?"]


def test_older_lines_are_judged_by_their_range_where_they_have_one() -> None:
    import _results

    assert _results.verdict(OLD) == "unsure"
    assert _results.verdict({**OLD, "ratio_range": [2.5, 3.0]}) == "yes"
    assert _results.verdict({**OLD, "want": "figure <= 9", "ok": True}) == "yes"
    assert _results.verdict({**OLD, "want": None, "ok": None}) is None


def test_the_line_that_counts_is_the_newest_that_is_traced_and_of_a_quiet_machine() -> None:
    import _results

    def line(at: str, **more: Any) -> dict[str, Any]:
        return {**OLD, "at": at, **more}

    clean = {"tree": "1a2b", "dirty": False, "busy": False, "peer": "peer 1.2.3"}
    lines = [line("1"), line("2", **clean), line("3", **clean), line("4", **clean | {"busy": True})]
    lines += [line("5", **clean | {"dirty": True}), line("6")]
    for count, at in ((6, "3"), (2, "2"), (1, "1")):
        assert [each["at"] for each in _results.newest(lines[:count]).values()] == [at]
    assert [each["at"] for each in _results.newest([lines[0], lines[3], lines[5]]).values()] == ["4"]
    assert str(_results.score([{**line, "ok": "yes"} for line in lines])).startswith("of 6 goals 2 met, 0 unsure")


# ---- the pages


@pytest.mark.parametrize("page", ["README.md", "bench/README.md"])
def test_figures_of_a_page_are_those_of_the_results(page: str) -> None:
    import _tables

    assert (ROOT / page).read_text() == _tables.generated(page), "run `make docs`"


def test_readme_shows_the_quickest_way_of_each_peer_it_names() -> None:
    import _results
    import _tables

    lines = _results.newest(_results.read())
    shown = _tables.keys_shown()
    for script, question in {key[:2] for key in shown}:
        ways: dict[str, list[tuple[float, tuple[str, str, str]]]] = {}
        for key, line in lines.items():
            if key[:2] == (script, question):
                rate = line["peer_figure"] if line["unit"].endswith("/s") else -line["peer_figure"]
                ways.setdefault(key[2].split(",")[0], []).append((rate, key))
        for peer, found in ways.items():
            if any(key in shown for _, key in found):
                assert max(found)[1] in shown, f"{question}: {peer} is quicker in another way"


def test_every_figure_of_readme_has_a_result_and_a_run_that_makes_it_again() -> None:
    import _collect
    import _results
    import _tables

    answered = {(line["script"], line["question"]) for line in _results.read()}
    measured = {script for script, _ in answered}  # a new script has no results yet
    assert {key[:2] for key in _tables.keys_shown() if key[0] in measured} <= answered
    assert {row.script for row in _tables.README_ROWS} == {run.script for run in _collect.README_RUNS}


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md", "bench/README.md"])
def test_no_figure_stands_outside_of_the_generated_tables(page: str) -> None:
    text = re.sub(r"<!-- begin: .*?<!-- end: ", "", (ROOT / page).read_text(), flags=re.DOTALL)
    figure = re.compile(r"\d[\d.,]*\s?(?:[kM]\s)?(?:×|[kM]?/s\b|[µmn]s\b|M?B/s|(?:records|rows|commits)/s)")
    assert [match.group() for match in figure.finditer(text)] == []
