"""The rules of the whole project: what no single package can promise about itself.

Imports point downwards, `__all__` tells the truth, `import klamm` is light, nothing public is undocumented, and no file
names a machine. What documents link to and show: test_documents.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import klamm
import klamm.errors
from klamm.store.settings import SETTINGS
from klamm.store.store_settings import STORE_SETTINGS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "klamm"
DOCS = ROOT / "docs"

# A package imports only packages below it in this list; those of one line know nothing of one another. Import-linter
# holds this for .py files (pyproject.toml); native modules it cannot see.
LAYERS = [
    ["cli"],
    ["console", "kafka", "spark", "transfer"],
    ["aio", "testing"],
    ["api"],
    ["cluster"],
    ["arrow", "client"],
    ["store"],
    ["where"],
    ["log"],
    ["batch", "disk"],
    ["types", "times"],
    ["choices", "other_names", "typevars"],
    ["errors"],
]
LEVELS = {package: level for level, packages in enumerate(LAYERS) for package in packages}

# Packages that cost more to import than Klamm itself, or that are optional.
HEAVY = [
    "duckdb",
    "nicegui",
    "numpy",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rocksdict",
    "starlette",
    "typer",
    "uvicorn",
    "asyncio",
    "multiprocessing",
    "klamm.kafka",
]


def repository_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git working tree")
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def packages() -> list[ModuleType]:
    names = [name for _, name, is_package in pkgutil.walk_packages(klamm.__path__, "klamm.") if is_package]
    return [klamm, klamm.errors, *(importlib.import_module(name) for name in names)]


def public_methods(thing: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(thing)
        if not name.startswith("_") and (callable(member) or inspect.isdatadescriptor(member))
    ]


# Layers


def test_imports_of_python_modules_point_downwards() -> None:
    lint = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*/*.px?")), ids=lambda path: path.name)
def test_imports_of_native_modules_point_downwards(path: Path) -> None:
    package = path.parent.name
    for imported in re.findall(r"^\s*(?:from|c?import)\s+klamm\.(\w+)", path.read_text(), re.MULTILINE):
        assert imported == package or LEVELS[imported] > LEVELS[package], f"{path.name} imports {imported}"


# The package's edge


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_all_names_only_what_is_there_and_each_once(package: ModuleType) -> None:
    names = getattr(package, "__all__", [])  # their order is ruff's to check
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(package, name)] == []


def test_every_public_class_and_function_of_klamm_is_in_all() -> None:
    ours = {
        name
        for name, thing in vars(klamm).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("klamm")
    }
    assert sorted(ours - set(klamm.__all__)) == []


def test_all_of_klamm_names_every_error() -> None:
    assert set(klamm.errors.__all__) <= set(klamm.__all__)


def test_every_native_module_has_a_stub() -> None:
    assert [path.name for path in SOURCE.glob("*/*.pyx") if not path.with_suffix(".pyi").exists()] == []


MAX_MODULES = 218  # of which 92 are the standard library's
MAX_SOURCE_BYTES = 900_000  # of Klamm's own modules; how long an import takes, bench/import_time.py says


def test_a_native_module_is_built_again_when_any_of_its_sources_changes() -> None:
    """What `depends` leaves out is changed without effect, by people and by mutants."""
    for module in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]:
        main = ROOT / module["sources"][0]
        folders = [main.parent, *(ROOT / folder for folder in module.get("include-dirs", []))]
        used, new = set[Path](), {main}
        while new:
            text = "\n".join(path.read_text() for path in new)
            names = re.findall(r'^\s*(?:include|#include|cdef extern from) "(\S+)"', text, re.MULTILINE)
            declared = re.findall(r"^from (klamm\.\S+) cimport", text, re.MULTILINE)
            used |= new
            new = {folder / name for folder in folders for name in names if (folder / name).is_file()} - used
            new |= {ROOT / "src" / f"{name.replace('.', '/')}.pxd" for name in declared} - used
        assert {str(path.relative_to(ROOT)) for path in used - {main}} == set(module["depends"]), module["name"]


def test_import_loads_few_modules_and_little_code() -> None:
    code = (
        "import sys; before = set(sys.modules); import klamm; import os\n"
        "loaded = set(sys.modules) - before\n"
        "own = [sys.modules[name].__file__ for name in loaded if name.partition('.')[0] == 'klamm']\n"
        "print(len(loaded), sum(os.path.getsize(file) for file in own if file.endswith('.py')))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, source_bytes = map(int, child.stdout.split())
    assert 60 < modules < MAX_MODULES
    assert MAX_SOURCE_BYTES // 2 < source_bytes < MAX_SOURCE_BYTES


def test_import_pulls_in_nothing_heavy() -> None:
    code = "import klamm, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in HEAVY if name in modules] == []


# Documents


def test_every_setting_is_documented_with_its_default_and_meaning() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    settings = [*SETTINGS.values(), *STORE_SETTINGS.values()]
    rows = [(f"| `{row.name}` | {row.type} | `{row.default}` |", row.doc) for row in settings]
    undocumented = [
        start for start, doc in rows if not any(line.startswith(start) and doc in line for line in page.splitlines())
    ]
    assert undocumented == []


def test_every_public_name_is_documented() -> None:
    page = (DOCS / "reference" / "api.md").read_text() + (DOCS / "reference" / "errors.md").read_text()
    assert [name for name in klamm.__all__ if not re.search(rf"`[^`\n]*\b{name}\b", page)] == []


@pytest.mark.parametrize(
    "name",
    ["Store", "Topic", "Topics", "Groups", "Transactions", "Producer", "Consumer", "Transaction", "Table", "Scan"],
)
def test_every_public_method_is_documented(name: str) -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    methods = public_methods(getattr(klamm, name))
    assert [method for method in methods if not re.search(rf"`[^`\n]*\b{method}\b", page)] == []


def test_every_test_that_proves_a_promise_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "internals" / "promises.md").read_text()))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 40 and sorted(named - there) == []


def test_every_error_is_documented() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    assert [name for name in klamm.errors.__all__ if f"`{name}`" not in page] == []


# Tests


# Calls that draw at random without a seed, where nothing that a test asserts depends on what is drawn.
UNSEEDED = {
    "tests/crash/cases.py": "draws the seed itself, and prints it",
    "tests/interop/brokers.py": "names of topics and groups that no earlier run used",
    "tests/interop/kafka_node.py": "the id of a cluster",
    "tests/serving.py": "a port to try",
}


def unseeded_calls(path: Path) -> list[str]:
    """Calls of `random`, `secrets` and `os.urandom` whose outcome no seed repeats."""
    found = []
    text = path.read_text()
    if not re.search(r"\b(random|secrets)\.|\burandom\b|\buuid4\b", text):
        return []  # parsing takes long
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            name = f"{node.func.value.id}.{node.func.attr}"
            seeded = name == "random.Random" and (node.args or node.keywords)
            if (name.startswith(("random.", "secrets.")) and not seeded) or name in ("os.urandom", "uuid.uuid4"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    return found


def test_what_tests_draw_at_random_can_be_drawn_again_by_its_seed() -> None:
    found = [call for path in sorted((ROOT / "tests").rglob("*.py")) for call in unseeded_calls(path)]
    assert [call for call in found if call.partition(":")[0] not in UNSEEDED] == [], "use cases.seed_of"
    assert sorted(set(UNSEEDED) - {call.partition(":")[0] for call in found}) == []


def test_a_seed_that_a_test_prints_is_read_from_the_environment() -> None:
    reads = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"environ.{0,10}KLAMM_SEED", path.read_text()) or re.search(r"print\(f?.seed\b", path.read_text())
    ]
    assert sorted(set(reads) - {"tests/test_house.py"}) == [], "only cases.seed_of reads and prints it"


def test_every_variable_of_the_environment_is_documented() -> None:
    pages = "\n".join(path.read_text() for path in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    used = set[str]()
    for path in repository_files():
        if path.suffix == ".py" or path.name in ("Makefile", "run"):
            used |= set(re.findall(r"[\"'$({]\(?(KLAMM_[A-Z_]+)", path.read_text()))
    assert {"KLAMM_SEED", "KLAMM_STORE"} <= used
    assert sorted(name for name in used if f"`{name}`" not in pages and f"{name}=" not in pages) == []


# Files


def test_no_file_names_a_machine() -> None:
    # Spelled in pieces, so that this file does not name them either.
    forbidden = re.compile(
        "|".join(["(?<![\\w.])/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "pypi" + r"\.org", "index-" + "url [a-z]"])
    )
    named = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if forbidden.search(line):
                named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert named == []


def test_the_lock_file_names_no_host_and_hashes_everything() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    pinned = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE | re.IGNORECASE)[1:]
    assert pinned
    assert [pin.split()[0] for pin in pinned if "--hash=sha256:" not in pin] == []


def test_no_source_file_holds_a_second_noun() -> None:
    # Around 600 lines, there is one to be found and split off.
    suffixes = {".py", ".pyx", ".pxd", ".pxi", ".pyi", ".h"}
    lines = {path: len(path.read_text().splitlines()) for path in repository_files() if path.suffix in suffixes}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 600} == {}


# Words: docs/internals/README.md has the glossary

BANNED_NAMES = {
    "chime",
    "desk",
    "dirt",
    "honoured",
    "hush",
    "janitor",
    "lane",
    "parking",
    "road",
    "seat",
    "sieve",
    "tenure",
}
BANNED_PROSE = re.compile(
    r"\b(whoever|somebody|nobody|anew)\b|(?<!there )\bis no\b(?! (?:longer|more|limit)\b)", re.IGNORECASE
)
NOUNS = {"encoding", "staging", "testing"}  # that end in -ing all the same
NOT_VERBS = re.compile(
    r"(?:A|After|All|An|And|Any|As|At|Away|Back|Before|Behind|By|Bytes|Each|Every|Everything|For|From|How|If|In|Is|"
    r"It|Its|KeyError|No|None|Not|Nothing|Now|Of|On|Once|One|Only|Room|Rows|So|Some|That|The|Their|Them|These|They|"
    r"This|Those|To|True|Under|Until|Up|What|When|Where|Whether|Which|While|Who|Whoever|Whole|Whose|With|Without)\b|\W"
)

NOT_NOUNS = re.compile(r"(?:For|From|How|Of|That|Those|What|When|Where|Whether|Which|Who|Whose|Why)\b")


def sources() -> list[Path]:
    return [path for path in SOURCE.rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h"}]


def test_modules_are_named_by_nouns() -> None:
    modules = [path for path in sources() if path.suffix in {".py", ".pyx"}]
    assert len(modules) > 200
    named = [path for path in modules if path.stem.endswith("ing") and path.stem not in NOUNS]
    assert [str(path) for path in named] == []


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_identifier_is_a_private_metaphor(path: Path) -> None:
    code = re.sub(r'"""(?:.|\n)*?"""|#.*|//.*|/\*(?:.|\n)*?\*/|"[^"\n]*"', "", path.read_text())
    parts = {
        part.lower().removesuffix("s")
        for name in set(re.findall(r"[A-Za-z_]\w*", code))
        for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)
    }
    assert sorted(parts & BANNED_NAMES) == []


def test_prose_names_its_actors() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    texts = [path for path in [*sources(), *pages] if path.name != "mutants.md"]  # that quotes names of mutants
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED_PROSE.search(line)
    ]
    assert found == []


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(re.search(r"property\b|\.setter$", ast.unparse(decorator)) for decorator in function.decorator_list)


def test_the_docstring_of_a_function_begins_with_a_verb() -> None:
    """Properties are values, and may be described by a noun."""
    docs = [
        (path, doc)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node)
        if (doc := ast.get_docstring(node, clean=False)) is not None
    ]
    native = re.compile(r'^(?! *@property\n).*\n *c?p?def (?!class|extern).*:\n +"""(.*)', re.MULTILINE)
    docs += [(path, doc) for path in SOURCE.rglob("*.p?[xi]") for doc in native.findall(path.read_text())]
    assert len(docs) > 1_500
    assert [f"{path.relative_to(SOURCE)}: {doc[:60]}" for path, doc in docs if NOT_VERBS.match(doc)] == []


def test_the_docstring_of_a_module_or_class_begins_with_its_noun_or_a_verb() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes: list[ast.Module | ast.ClassDef] = [tree]
        nodes += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in nodes:
            doc = ast.get_docstring(node) or ""
            if NOT_NOUNS.match(doc):
                found.append(f"{path.relative_to(SOURCE)}: {doc[:60]}")
    assert found == []


QUESTION = re.compile(r"[\w'`]\?(?: |$)")
NO_ERRORS = ("Do it?", "did you mean ")  # a prompt, and the hint that Python and Kafka's tools have, too


def literals(path: Path) -> list[tuple[int, str]]:
    """Return the texts of a file that are not docstrings, with their lines; 0 for what an f-string has in braces."""
    if path.suffix != ".py":
        lines = enumerate(path.read_text().splitlines(), 1)
        return [(number, text) for number, line in lines for text in re.findall(r'(?<!")"([^"\n]+)"(?!")', line)]
    tree = ast.parse(path.read_text())
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    seen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    seen |= {id(part) for node in joined for part in node.values}
    found = [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen
    ]
    for node in joined:
        parts = [str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values]
        found.append((node.lineno, "".join(parts)))
    return found


def test_no_error_is_a_question() -> None:
    """Nor is its hint: it says what to do. But for "did you mean 'orders'?"."""
    asked = [
        f"{path.relative_to(SOURCE)}:{number}: {text}"
        for path in sources()
        for number, text in literals(path)
        if QUESTION.search(text) and " " in text and "\n" not in text and not text.startswith(NO_ERRORS)
    ]
    assert asked == []


# Locks of a new object; of threads that run no signal handlers, and in which nobody raises anything; and functions that
# are no lock's.
TAKEN_BY_CALLS = {
    "disk/threads.py": {"self._ended"},
    "kafka/monitor.py": {"self._connections"},
    "api/store.py": {"directory"},
    "store/check.py": {"directory"},
}


def test_no_lock_is_taken_by_a_call() -> None:
    """An interrupt may come between `acquire()` and a `try`, and leaves the lock held. `with` has no such gap, nor has
    `with TimedLock(…)`, for a limited wait.
    """
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        if ".acquire" in (text := path.read_text())  # parsing takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "acquire"
        if ast.unparse(node.func.value) not in TAKEN_BY_CALLS.get(str(path.relative_to(SOURCE)), ())
    ]
    assert found == []


def test_labels_of_promises_are_unique() -> None:
    labels: dict[str, list[str]] = {}
    for path in sources():
        for label in re.findall(r"^ ?\*? {2,}([A-Z]{1,4}\d+[a-z]?)  \S", path.read_text(), re.MULTILINE):
            labels.setdefault(label, []).append(path.name)
    assert len(labels) > 150
    assert {label: names for label, names in labels.items() if len(names) > 1} == {}


# What looks like a label and is none: names of algorithms, compilers and pins.
NOT_LABELS = {"CRC32", "LZ4", "MSYS2", "O1", "O2", "O3", "SSE4", "UCRT64", "UTF8", "Z0"}


def test_a_promise_that_is_named_is_made_somewhere() -> None:
    """A label that was renamed leaves references behind that lead nowhere."""
    made = set[str]()
    for path in sources():
        made |= set(re.findall(r"^ *\*? *([A-Z]{1,4}\d+[a-z]?)  \S", path.read_text(), re.MULTILINE))
    pages = [path for path in DOCS.rglob("*.md") if path.name != "mutants.md"]  # that names mutants of older code
    named = [
        (f"{path.relative_to(ROOT)}:{number}: {label}", label)
        for path in [*sources(), *pages]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for label in re.findall(r"(?<![\w-])[A-Z]{1,4}\d{1,2}(?![\w-])", line)
    ]
    assert len(named) > 400
    assert [where for where, label in named if label not in made | NOT_LABELS] == []
