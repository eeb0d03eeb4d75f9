"""Build the sdist and the wheels, and try them: what `make wheel` does.

    python release/build_wheels.py [x86_64] [aarch64] [--no-smoke]

  1  The sdist is built from the working tree and has every file that git has; the wheels are built from it, unpacked.
  2  A wheel is compiled by zig, from PyPI, against glibc 2.28, so that it runs on every Linux since 2018. If zig cannot
     be had, gcc compiles it against this machine's glibc, and the name of the wheel says so (linux_x86_64).
  3  A wheel has no sources of native modules and no debugging symbols; auditwheel agrees with its name.
  4  A wheel for this machine's processor is installed into an empty environment without a compiler, first alone, then
     with the extras `cli` and `console`, and release/smoke.py does there what a user does first. One for another
     processor is run by qemu-user if that and a Python for it are there (release/emulated.sh fetches both from Debian);
     else a line says that it was not run.

Everything is put into dist/. The exit code is 0 if all that was built passed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ROOT / ".tools" / "release"
UV = Path(sys.executable).parent / "uv"
GLIBC = "2.28"
PROCESSORS = ("x86_64", "aarch64")
SOURCES = (".c", ".h", ".pxd", ".pxi", ".pyx")
SYMBOLS = (b".symtab", b".debug_info")  # names of sections that a stripped library does not have


def main() -> int:
    """Build, check and try; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the sdist and the wheels, and try them.")
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=f"default: {' '.join(PROCESSORS)}")
    parser.add_argument("--no-smoke", action="store_true", help="build and check, but run nothing")
    options = parser.parse_args()
    processors = options.processors or PROCESSORS
    if unknown := set(processors) - set(PROCESSORS):
        parser.error(f"{', '.join(sorted(unknown))}: unknown processor (there are {', '.join(PROCESSORS)})")
    has_zig = fetch_tools()
    shutil.rmtree(DIST, ignore_errors=True)
    sdist = build_sdist()
    wheels = []
    for processor in processors:
        if not has_zig and processor != platform.machine():
            report(f"{processor}: not built: gcc compiles for {platform.machine()} only")
            continue
        wheel = build_wheel(sdist, processor, has_zig=has_zig)
        check_contents(wheel)
        if has_zig:
            wheel = audit(wheel, processor)
        wheels.append((processor, wheel))
    for processor, wheel in wheels:
        if options.no_smoke:
            report(f"{wheel.name}: not run")
        elif processor == platform.machine():
            run_smoke(wheel)
        else:
            run_emulated(wheel, processor)
    return 0


def report(line: str) -> None:
    """Print a line about what happens."""
    print(f"wheel: {line}", flush=True)


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it prints; end with its output if it fails."""
    done = subprocess.run(
        [str(part) for part in command], env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"wheel: {' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def fetch_tools() -> bool:
    """Install zig and auditwheel into an environment of their own; return whether that worked."""
    requirements = ROOT / "release" / "requirements.txt"
    installed = TOOLS / "requirements.txt"
    if installed.is_file() and installed.read_bytes() == requirements.read_bytes():
        return True
    report("zig and auditwheel into .tools/release")
    made = subprocess.run([UV, "venv", "-q", "--clear", "--python", sys.executable, TOOLS])
    python = TOOLS / "bin" / "python"
    if (
        made.returncode
        or subprocess.run([UV, "pip", "install", "-q", "--python", python, "-r", requirements]).returncode
    ):
        report(
            f"zig cannot be had: gcc compiles, and the wheel needs the glibc of this machine, {platform.libc_ver()[1]}"
        )
        return False
    shutil.copyfile(requirements, installed)
    return True


def build_sdist() -> Path:
    """Build the sdist and return its path."""
    run(UV, "build", "-q", "--sdist", "--no-build-isolation", "--python", sys.executable, "-o", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    if (ROOT / ".git").exists():
        tracked = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
        if missing := [name for name in tracked if name and name not in packed and (ROOT / name).exists()]:
            sys.exit(f"wheel: {sdist.name} lacks {', '.join(missing)} (MANIFEST.in says what goes into it)")
    report(f"{sdist.name}: {len(packed)} files, {sdist.stat().st_size / 1e6:.1f} MB")
    return sdist


def build_wheel(sdist: Path, processor: str, *, has_zig: bool) -> Path:
    """Build a wheel from what is in the sdist and return its path."""
    with tempfile.TemporaryDirectory(prefix="klamm-wheel-") as temporary:
        with tarfile.open(sdist) as archive:
            archive.extractall(temporary, filter="data")
        (source,) = Path(temporary).iterdir()
        output = Path(temporary) / "out"
        env = compiler_environment(processor) if has_zig else dict(os.environ, LDFLAGS="-s")
        report(f"{processor}: compiled by {'zig, for glibc ' + GLIBC if has_zig else 'gcc'}")
        run(
            *(UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", output, source),
            env=env,
        )
        (wheel,) = output.glob("*.whl")
        return Path(shutil.copy(wheel, DIST))


def compiler_environment(processor: str) -> dict[str, str]:
    """Return the environment in which setuptools compiles with zig, for a processor that may not be this machine's."""
    compiler = (
        f"{TOOLS / 'bin' / 'python'} -m ziglang cc -target {processor}-linux-gnu.{GLIBC} -fno-sanitize=undefined -g0"
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX").replace(platform.machine(), processor)
    return {
        **os.environ,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
        "ZIG_GLOBAL_CACHE_DIR": str(TOOLS / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(TOOLS / "zig-cache"),
    }


def check_contents(wheel: Path) -> None:
    """End if a wheel has sources or symbols of native modules, or lacks a native module, a stub or another file."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = {name: archive.read(name) for name in names if name.endswith(".so")}
    if sources := [name for name in names if name.endswith(SOURCES)]:
        sys.exit(f"wheel: {wheel.name} has sources: {', '.join(sources)}")
    for name, content in libraries.items():
        if found := [section for section in SYMBOLS if section in content]:
            sys.exit(f"wheel: {wheel.name}: {name} is not stripped: it has {b', '.join(found).decode()}")
    for path in sorted((ROOT / "src").rglob("*.pyx")):
        module = path.relative_to(ROOT / "src").with_suffix("")
        if not any(name.startswith(f"{module}.") for name in libraries):
            sys.exit(f"wheel: {wheel.name} lacks the native module {module}")
        if f"{module}.pyi" not in names:
            sys.exit(f"wheel: {wheel.name} lacks the stub {module}.pyi")
    pages = [path for path in (ROOT / "src").rglob("*") if path.suffix == ".html" or path.parent.name == "static"]
    for path in sorted(pages):
        if str(path.relative_to(ROOT / "src")) not in names:
            sys.exit(f"wheel: {wheel.name} lacks {path.relative_to(ROOT / 'src')}")
    for wanted in ("klamm/py.typed", "pytest_klamm/py.typed", ".dist-info/licenses/LICENSE"):
        if not any(name.endswith(wanted) for name in names):
            sys.exit(f"wheel: {wheel.name} lacks {wanted}")
    report(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def audit(wheel: Path, processor: str) -> Path:
    """Name a wheel by the oldest Linux that it promises to run on, and let auditwheel agree; return its path."""
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    python = TOOLS / "bin" / "python"
    run(python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel)
    (renamed,) = DIST.glob(f"*{tag}.whl")
    found = run(python, "-m", "auditwheel", "show", renamed)
    agreed = re.search(r'platform tag:\s*"(\S+)"', found)
    if agreed is None or not oldest(agreed[1]) <= oldest(tag):
        sys.exit(f"wheel: auditwheel does not agree with {renamed.name}:\n{found}")
    report(f"{renamed.name}: auditwheel finds {agreed[1]}")
    return renamed


def oldest(tag: str) -> tuple[int, ...]:
    """Return the version of glibc that a platform tag asks for; the largest if it names none."""
    version = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return tuple(map(int, version.groups())) if version else (1 << 30,)


def run_smoke(wheel: Path) -> None:
    """Install a wheel into an empty environment and do there what a user does first."""
    with tempfile.TemporaryDirectory(prefix="klamm-smoke-") as temporary:
        home = Path(temporary) / "venv"
        run(UV, "venv", "-q", "--python", sys.executable, home)
        programs = Path(temporary) / "programs"  # no compiler is among them
        programs.mkdir()
        if kcat := shutil.which("kcat"):
            (programs / "kcat").symlink_to(kcat)
        path = f"{home / 'bin'}:{programs}"
        assert not any(shutil.which(name, path=path) for name in ("cc", "gcc", "clang", "zig")), path
        env = {"PATH": path, "HOME": temporary, "LANG": "C.UTF-8"}
        for packages in ([str(wheel)], [f"{wheel}[cli,console]", "pytest"]):
            run(UV, "pip", "install", "-q", "--no-build", "--python", home / "bin" / "python", *packages)
            print(run(home / "bin" / "python", ROOT / "release" / "smoke.py", env=env, cwd=Path(temporary)), end="")


def run_emulated(wheel: Path, processor: str) -> None:
    """Run a wheel for another processor by qemu-user, or say that it was not run."""
    script = ROOT / "release" / "emulated.sh"
    done = subprocess.run([script, processor, wheel], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        print(done.stdout, end="")
        return
    if done.returncode == 3:
        report(f"{wheel.name}: built, not run: {done.stdout.strip().splitlines()[-1]}")
        return
    sys.exit(f"wheel: {wheel.name} fails on an emulated {processor}:\n{done.stdout}")


if __name__ == "__main__":
    sys.exit(main())
