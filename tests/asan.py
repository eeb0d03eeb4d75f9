"""Native modules that read what others wrote, built with AddressSanitizer and UndefinedBehaviorSanitizer.

    python tests/asan.py [pytest arguments]

builds them into build/asan, each when it has changed, and runs pytest with this file as a plugin, which lets Python
find them there. Memory comes from malloc, not from Python's pools, so that each bytes object has its own guarded edges.
`detect_leaks=0` because Python never frees all; `malloc_context_size=1` because a stack for each allocation of Python
costs a fifth of the time (a report has the whole stack of the wrong access all the same); `-s` because pytest would
swallow the report.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))  # asked for here: threads that ask first at once may get None
SOURCE = ROOT / "src" / "klamm"
MODULES = ("klamm.batch._kernel", "klamm.disk._os", "klamm.kafka._fetch", "klamm.kafka._produce", "klamm.log._head")
FLAGS = ["-O0", "-g0", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-Wno-unused-function", "-fPIC", "-shared"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# Reads of Arrow buffers need not be aligned: the CPUs we build for do not mind, and slices of tables are not. The other
# look at every pointer of what Cython generates and take a third of the compile time; what they find, AddressSanitizer
# reports when it is read or written.
SANITIZERS.append("-fno-sanitize=alignment,null,object-size,pointer-overflow")
SANITIZERS += ["--param", "asan-instrumentation-with-call-threshold=0"]  # calls compile sooner than inline checks
PLACE = "KLAMM_ASAN"
"""In the environment: the folder with the modules."""


def library() -> str | None:
    """AddressSanitizer's runtime, which has to be loaded before Python; None where gcc has none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def build() -> Path:
    """Return the folder with the sanitized modules; those are made whose source, flags or compiler have changed."""
    place = ROOT / "build" / "asan"
    place.mkdir(parents=True, exist_ok=True)
    extensions = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    wanted = [each for each in extensions if each["name"] in MODULES]
    assert len(wanted) == len(MODULES)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: _make(each["name"], [*each["sources"], *each["depends"]], place), wanted))
    return place


def _make(name: str, files: list[str], place: Path) -> None:
    """Compile a module, unless that has been done with the same code, headers, flags and compiler."""
    sources = [ROOT / file for file in files]
    code = _code(name, sources, place)
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    headers = [path.read_bytes() for path in sources if path.suffix == ".h"]
    parts = [code.read_bytes(), *headers, compiler, sys.version.encode(), *map(str.encode, FLAGS + SANITIZERS)]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    library = file_of(place, name)
    made_of = place / f"{name}.sha256"
    if library.exists() and made_of.exists() and made_of.read_text() == digest:
        return
    folders = [SOURCE / "batch", SOURCE / "disk", SOURCE / "log", sysconfig.get_path("include")]
    include = [argument for folder in folders for argument in ("-I", str(folder))]
    temporary = place / f"{name}.{os.getpid()}"
    subprocess.run(["gcc", *FLAGS, *SANITIZERS, *include, str(code), "-o", str(temporary)], check=True)
    temporary.rename(library)
    made_of.write_text(digest)


def _code(name: str, sources: list[Path], place: Path) -> Path:
    """Return a module's code in C: as `make build` has left it, or made here if a source has changed since."""
    _, part, stem = name.split(".")
    newest = max(path.stat().st_mtime for path in sources)
    own = place / f"{name}.c"
    for found in (SOURCE / part / f"{stem}.c", own):
        if found.exists() and found.stat().st_mtime > newest:
            return found
    temporary = place / f"{name}.{os.getpid()}.c"
    cython = [sys.executable, "-m", "cython", "-3", "--module-name", name, "-o", str(temporary), f"{stem}.pyx"]
    subprocess.run(cython, cwd=SOURCE / part, check=True, stderr=subprocess.DEVNULL)
    temporary.rename(own)
    return own


def file_of(place: Path, name: str) -> Path:
    return place / (name + SUFFIX)


def run(arguments: list[str], examples: int = 100) -> subprocess.CompletedProcess[str]:
    """Run pytest with these arguments, on the sanitized modules; hostile tests try that many examples each."""
    preload = library()
    assert preload is not None
    environment = os.environ | {
        PLACE: str(build()),
        "PYTHONMALLOC": "malloc",
        "KLAMM_EXAMPLES": str(examples),
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=1:allocator_may_return_null=1:abort_on_error=0",
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.asan", "-q", "-s", "-p", "no:cacheprovider", "--timeout=0"]
    return subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


class Finder:
    """Finds the sanitized modules before Python finds the others."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, file_of(self.place, name)) if name in MODULES else None


if __name__ == "__main__":
    result = run(sys.argv[1:])
    sys.stdout.write(result.stdout + result.stderr)
    sys.exit(result.returncode)
elif PLACE in os.environ:
    sys.meta_path.insert(0, Finder(Path(os.environ[PLACE])))
