"""The kernel built with AddressSanitizer and UndefinedBehaviorSanitizer, and tests run with it.

    python tests/batch/asan.py [pytest arguments]

builds the kernel into build/asan-<hash of its sources>, once, beside copies of the Python files it needs, and runs
pytest in a process that finds this copy first. Memory comes from malloc there, not from Python's pools, so that each
bytes object has its own guarded edges. `detect_leaks=0` because Python never frees all; `-s` because pytest would
swallow the report.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "klamm"
FLAGS = ["-O0", "-g1", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-Wno-unused-function", "-fPIC", "-shared"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# Reads of Arrow buffers need not be aligned: the CPUs we build for do not mind, and slices of tables are not.
SANITIZERS.append("-fno-sanitize=alignment")


def library() -> str | None:
    """AddressSanitizer's runtime, which has to be loaded before Python; None where gcc has none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def build() -> Path:
    """The folder with the sanitized copy; made when a source has changed since."""
    sources = sorted(p for p in (SOURCE / "batch").iterdir() if p.suffix in {".pyx", ".pxi", ".pxd", ".h", ".py"})
    sources += [SOURCE / "errors.py", Path(__file__)]
    name = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    place = ROOT / "build" / f"asan-{name}"
    if not (place / "done").exists():
        for old in (ROOT / "build").glob("asan-*"):
            shutil.rmtree(old)
        batch = place / "klamm" / "batch"
        batch.mkdir(parents=True)
        (place / "klamm" / "__init__.py").touch()
        shutil.copy(SOURCE / "errors.py", place / "klamm")
        for path in sources[:-2]:
            shutil.copy(path, batch)
        kernel = [sys.executable, "-m", "cython", "-3", "--module-name", "klamm.batch._kernel", "_kernel.pyx"]
        subprocess.run(kernel, cwd=batch, check=True)
        include = ["-I", ".", "-I", sysconfig.get_path("include")]
        target = "_kernel" + sysconfig.get_config_var("EXT_SUFFIX")
        subprocess.run(["gcc", *FLAGS, *SANITIZERS, *include, "_kernel.c", "-o", target], cwd=batch, check=True)
        (place / "done").touch()
    return place


def run(arguments: list[str], examples: int = 100) -> subprocess.CompletedProcess[str]:
    """pytest with these arguments, on the sanitized kernel; the hostile tests try that many examples each."""
    preload = library()
    assert preload is not None
    environment = os.environ | {
        "PYTHONPATH": str(build()),
        "PYTHONMALLOC": "malloc",
        "KLAMM_EXAMPLES": str(examples),
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout=0", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    result = run(sys.argv[1:])
    sys.stdout.write(result.stdout + result.stderr)
    sys.exit(result.returncode)
