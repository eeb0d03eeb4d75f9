"""What release/ checks before a wheel or a site is made of the project."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    """Import a script of release/, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_wheel(path: Path, leave_out: str = "", **more: bytes) -> Path:
    """Write a wheel with empty files that has all that a wheel must have, but for `leave_out`."""
    modules = [source.relative_to(ROOT / "src").with_suffix("") for source in (ROOT / "src").rglob("*.pyx")]
    names = ["klamm/py.typed", "pytest_klamm/py.typed", "klamm-1.dist-info/licenses/LICENSE"]
    names += [f"klamm/console/static/{path.name}" for path in (ROOT / "src/klamm/console/static").iterdir()]
    names += ["klamm/spark/pipelines/quality_page.html"]
    names += [f"{module}.{suffix}" for module in modules for suffix in ("cpython-311-x86_64-linux-gnu.so", "pyi")]
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            if not leave_out or leave_out not in name:
                archive.writestr(name, b"")
        for name, content in more.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return path


def test_a_wheel_with_everything_in_it_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("build_wheels").check_contents(make_wheel(tmp_path / "klamm.whl"))
    assert "klamm.whl: 21 files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("leave_out", "more", "complaint"),
    [
        ("", {"klamm__batch__record_dot_h": b""}, "has sources: klamm/batch/record.h"),
        ("", {"klamm__x_dot_so": b"..\0.symtab\0.."}, r"klamm/x\.so is not stripped: it has \.symtab"),
        ("log/_head.cpython", {}, "lacks the native module klamm/log/_head"),
        ("log/_head.pyi", {}, r"lacks the stub klamm/log/_head\.pyi"),
        ("klamm/py.typed", {}, r"lacks klamm/py\.typed"),
        ("console.js", {}, r"lacks klamm/console/static/console\.js"),
        ("quality_page", {}, r"lacks klamm/spark/pipelines/quality_page\.html"),
        ("licenses/LICENSE", {}, "lacks .dist-info/licenses/LICENSE"),
    ],
)
def test_a_wheel_that_lacks_something_is_not_made(
    tmp_path: Path, leave_out: str, more: dict[str, bytes], complaint: str
) -> None:
    with pytest.raises(SystemExit, match=complaint):
        script("build_wheels").check_contents(make_wheel(tmp_path / "klamm.whl", leave_out, **more))


def test_the_navigation_of_the_site_names_every_page() -> None:
    config = (ROOT / "release" / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w./-]+\.md\b", config.partition("\nnav:\n")[2])
    pages = [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "bench", "examples") for page in (ROOT / folder).rglob("*.md")),
    ]
    names = [page.relative_to(ROOT).as_posix() for page in pages]
    assert sorted(listed) == sorted(name for name in names if not name.startswith("docs/decisions/"))


def test_a_free_threaded_build_is_refused_by_the_compiler(tmp_path: Path) -> None:
    source = tmp_path / "module.c"
    source.write_text('#define Py_GIL_DISABLED 1\n#include "os.h"\n')
    compiled = subprocess.run(
        ["cc", "-fsyntax-only", "-I", ROOT / "src" / "klamm" / "disk", source], capture_output=True, text=True
    )
    assert compiled.returncode != 0
    assert "Klamm does not support free-threaded builds of CPython" in compiled.stderr


def test_the_matrix_names_a_python_that_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = script("run_matrix")
    broken, free = tmp_path / "python3.98", tmp_path / "python3.99t"
    broken.write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
    free.write_text("#!/bin/sh\necho 3.99 True\n")
    for program in (broken, free):
        program.chmod(0o755)
    assert matrix.main(["no-such-python", str(broken), str(free)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "matrix: no-such-python: not found: skipped",
        f"matrix: {broken}: does not start: skipped no such library",
        f"matrix: {free}: a free-threaded build, which Klamm does not support: skipped",
    ]
    assert lines[3].startswith("matrix: nothing ran")
    assert matrix.usable_version(sys.executable) == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_the_matrix_finds_the_newest_python_that_pyenv_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    folders = {version: tmp_path / "versions" / version / "bin" for version in ("3.98.9", "3.98.10", "3.9.1", "3.97.0")}
    for version, folder in {**folders, "3.98.0": tmp_path / "shims"}.items():
        program = folder / f"python{version.rpartition('.')[0]}"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    find_python = script("run_matrix").find_python
    assert find_python("python3.98") == str(tmp_path / "versions" / "3.98.10" / "bin" / "python3.98")
    assert find_python("python3.99") is None


def test_a_wheel_for_another_python_is_not_run_on_debian_s(tmp_path: Path) -> None:
    wheel = tmp_path / "klamm-1-cp312-cp312-manylinux_2_28_aarch64.whl"
    wheel.touch()
    ended = subprocess.run([ROOT / "release" / "emulated.sh", "aarch64", wheel], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (
        3,
        f"{wheel.name} is for another Python than 3.11, which is the only one that Debian has for aarch64\n",
    )


def test_the_sdist_has_every_file_and_folder_at_the_top() -> None:
    """`make wheel` compares all of it; this notices a new file when it is made."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git working tree")
    tops = {path.split("/")[0] for path in listed.stdout.splitlines()}
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line[:1] not in ("#", "")]
    patterns = [name for command, *names in lines if command in ("include", "graft") for name in names]
    patterns += ["src", "pyproject.toml", "LICENSE"]  # with a rule of its own, and by setuptools
    assert sorted(top for top in tops if not any(fnmatch(top, pattern) for pattern in patterns)) == []


def test_every_extra_is_in_the_table_of_the_readme_and_in_all() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    table = (ROOT / "README.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == extras
    (everything,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == extras - {"all"}


def test_what_make_run_installs_is_a_part_of_what_make_test_installs() -> None:
    """The same versions and hashes: `make test` adds packages to the .venv of `make run`, and changes none."""

    def packages(name: str) -> dict[str, str]:
        text = (ROOT / name).read_text()
        found = re.finditer(r"^([a-z][\w.-]*)(==\S+)[^\n]*((?:\n +[^\n]*)*)", text, re.M)
        return {package[1]: package[2] + package[3] for package in found}  # for which Pythons may differ

    everything, run = packages("requirements.lock"), packages("requirements-run.lock")
    assert {"cramjam", "cython", "starlette", "typer", "uv", "uvicorn", "zstandard"} <= run.keys()
    assert {name: text for name, text in run.items() if everything.get(name) != text} == {}
