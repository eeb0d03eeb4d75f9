"""What checkers say of programs: right.py is accepted as it is, and of wrong.py exactly the lines that are marked.

Both files are copied out of the project, and each checker runs once. The project's settings do not count: both say
what they say to a user who asks for `strict`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = ("right.py", "wrong.py")
MARK = "  # wrong"
_NEUTRAL = {"strict", "files", "exclude", "mypy_path", "explicit_package_bases", "overrides"}
"""Options of mypy in pyproject.toml that do not change what it says of a program."""

Refused = dict[tuple[str, int], list[str]]
"""By file and line: why."""


def mypy(programs: Path) -> Refused:
    """Check with the options and the cache of `make check`, which has just looked at all that is imported, but for what
    those options have beyond --strict.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert project["strict"] and set(project) - _NEUTRAL <= {"warn_unreachable", "enable_error_code"}, sorted(project)
    beyond = {"warn_unreachable": False, "disable_error_code": project["enable_error_code"]}
    lines = [
        "[tool.mypy]",
        *(f"{name} = {json.dumps(value)}" for name, value in project.items() if name != "overrides"),
    ]
    for override in [*project["overrides"], {"module": [name.removesuffix(".py") for name in PROGRAMS], **beyond}]:
        lines += ["[[tool.mypy.overrides]]", *(f"{name} = {json.dumps(value)}" for name, value in override.items())]
    config = programs / "pyproject.toml"
    config.write_text("\n".join(lines))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", f"--config-file={config}", f"--cache-dir={ROOT / '.mypy_cache'}"),
            *("--no-error-summary", *(str(programs / name) for name in PROGRAMS)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    refused: Refused = {}
    for line in done.stdout.splitlines():
        if found := re.match(r".*?(\w+\.py):(\d+): error: (.*)", line):
            refused.setdefault((found[1], int(found[2])), []).append(found[3])
    return refused


def pyright(programs: Path) -> Refused:
    settings = {"include": ["."], "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11"}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=programs,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    refused: Refused = {}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            refused.setdefault((Path(each["file"]).name, each["range"]["start"]["line"] + 1), []).append(
                each["message"]
            )
    return refused


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def refused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    checker: Callable[[Path], Refused] = request.param
    programs = tmp_path_factory.mktemp(checker.__name__)
    for name in PROGRAMS:
        shutil.copy(HERE / name, programs)
    return checker(programs)


def described(name: str, lines: set[int], refused: Refused) -> list[str]:
    text = (HERE / name).read_text().splitlines()
    return [f"{line}: {text[line - 1].strip()} {refused.get((name, line), '')}" for line in sorted(lines)]


def test_programs_that_are_right_are_accepted(refused: Refused) -> None:
    lines = {line for name, line in refused if name == "right.py"}
    assert described("right.py", lines, refused) == []


def test_every_line_that_is_wrong_is_refused_and_no_other(refused: Refused) -> None:
    text = (HERE / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(text, 1) if line.endswith(MARK)}
    found = {line for name, line in refused if name == "wrong.py"}
    assert len(wrong) > 90
    assert described("wrong.py", wrong - found, refused) == [], "accepted"
    assert described("wrong.py", found - wrong, refused) == [], "refused"
