"""Libraries for LD_PRELOAD, compiled once for each version of their source."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

__all__ = ["compiled"]


def compiled(source: Path) -> Path:
    """Compile a C source of the tests into a shared library and return its path."""
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = Path(__file__).parent.parent / "build" / "tests" / f"{source.stem}-{name}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        temporary = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", temporary, source, "-ldl"], check=True)
        temporary.rename(library)
    return library
