"""Documents: what they link to is there, and what they show is run, or says here why not.

A block of Python marked `python` is pasted into a prompt, block after block of its page; pages that start Spark are
pasted in tests/spark/test_guide.py. One marked `py` is run by another test (ELSEWHERE), or not at all (NOT_RUN);
likewise every block of shell.
"""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.procs import STRICT

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ["README.md", "docs/start.md", *sorted(f"docs/guide/{path.name}" for path in (DOCS / "guide").glob("*.md"))]

# What the pages of the guide take for granted.
BEFORE_GUIDE = """
import klamm
store = klamm.open("events/")
orders = store.topics.create("orders", partitions=3, exist_ok=True)
where = store.append_many("orders", [(b"user-%d" % (n % 10), b"%d" % n) for n in range(1000)])
"""

_COMMANDS = "tests/cli/test_guide.py::test_commands_of_the_guide_can_be_pasted_into_a_shell"
_FIRST_STEPS = "tests/cli/test_guide.py::test_the_first_steps_work_one_after_the_other_on_one_directory"
_STREAMS = "tests/spark/pipelines/test_streams.py::test_the_examples_of_the_guide_are_true"
_DECLARATIVE = "tests/spark/pipelines/test_declarative.py::test_a_second_run_takes_what_is_new_and_nothing_twice"
_SPARK = "tests/spark/test_guide.py::test_the_page_on_spark_works_when_pasted_into_a_prompt"
_ARCHIVE = "tests/spark/test_guide.py::test_the_page_on_archives_works_when_pasted_into_a_prompt"
_EXACTLY_ONCE = "tests/spark/test_guide.py::test_the_queries_of_the_page_on_exactly_once_deliver_each_record_once"
_LIFE = "tests/spark/pipelines/test_life.py::test_each_generation_equals_numpy_s_though_the_driver_is_killed"

# Page and the beginning of a block: the test that runs the block itself, or the program that it is taken from.
ELSEWHERE = {
    ("docs/guide/command-line.md", "sh", ""): _COMMANDS,
    ("docs/guide/declarative-pipelines.md", "py", "from pyspark import pipelines"): _DECLARATIVE,
    ("docs/guide/life.md", "py", "events = klamm.spark.read_stream("): _LIFE,
    ("docs/guide/operations.md", "sh", "klamm who"): (
        "tests/cli/test_who.py::test_who_lists_the_locks_of_open_processes"
    ),
    ("docs/guide/pipeline-archive.md", "python", ""): _ARCHIVE,
    ("docs/guide/pipeline-compact.md", "py", ""): (
        "tests/spark/pipelines/test_compact.py::test_the_example_of_the_guide_works"
    ),
    ("docs/guide/pipeline-quality.md", "py", ""): (
        "tests/spark/pipelines/test_quality.py::test_the_example_of_the_guide_works"
    ),
    ("docs/guide/pipeline-streams.md", "py", ""): _STREAMS,
    ("docs/guide/pipelines.md", "sh", "klamm pipeline"): (
        "tests/cli/test_pipeline.py::test_a_small_topic_needs_no_spark_and_the_pipeline_is_managed"
    ),
    ("docs/guide/securing.md", "sh", ""): "tests/cli/test_user.py::test_the_page_on_security_works_as_it_is",
    ("docs/guide/spark-exactly-once.md", "py", ""): _EXACTLY_ONCE,
    ("docs/guide/spark.md", "python", ""): _SPARK,
    ("docs/guide/workers-and-dead-letters.md", "sh", "klamm work"): (
        "tests/cli/test_work.py::test_the_command_of_the_guide_works"
    ),
    ("docs/internals/kafka-wire.md", "python", ">>> "): (
        "tests/test_documents.py::test_a_dialogue_with_a_prompt_goes_as_the_page_says"
    ),
    ("docs/start.md", "sh", "export KLAMM_STORE"): _FIRST_STEPS,
    ("docs/start.md", "sh", "klamm serve events --kafka 9092"): _FIRST_STEPS,
    ("docs/start.md", "sh", "echo 'carol:/home'"): _FIRST_STEPS,
}

_INSTALLS = "installs packages"
_ANOTHER_JVM = "settings of a session are those of its JVM: tests/spark/test_session.py starts one"
_A_CLUSTER = "there is no cluster of Spark's here"
_PORT = "a port that may be taken; tests serve at any that is free, as tests/serving.py does"
_CONNECTOR = "tests/spark/test_kafka_connector.py has the same queries, at another port and with an end"

NOT_RUN = {
    (
        "docs/guide/copying.md",
        "sh",
        "klamm copy events/ backup/",
    ): "names brokers; tests/transfer/test_copy.py copies so",
    ("README.md", "sh", "klamm serve"): _PORT,
    ("README.md", "sh", "echo hello | kcat"): f"{_PORT}; docs/start.md has the same with a test",
    ("README.md", "sh", "export KLAMM_STORE"): "docs/guide/command-line.md has the same commands with a test",
    ("README.md", "sh", "python3 -m venv"): _INSTALLS,
    ("CONTRIBUTING.md", "sh", "git clone"): "clones and installs",
    ("docs/guide/command-line.md", "bash", "klamm pipeline"): "each starts a JVM: tests/cli/test_pipeline.py has them",
    ("docs/guide/console.md", "console", "$ klamm console"): f"{_PORT}: tests/console/test_server.py",
    ("docs/guide/console.md", "sh", "klamm serve events/ --console"): f"{_PORT}: tests/cli/test_serve_console.py",
    ("docs/guide/console.md", "sh", "klamm console events/ --host"): f"{_PORT}: tests/console/test_security.py",
    ("docs/guide/declarative-pipelines.md", "sh", "pip install"): _INSTALLS,
    ("docs/guide/life.md", "sh", "pip install"): _INSTALLS,
    ("docs/guide/serving.md", "sh", "klamm serve events/ --kafka 9092"): _PORT,
    ("docs/guide/serving.md", "sh", "echo 'user-1:hello' | kcat"): f"{_PORT}; docs/start.md has the same with a test",
    ("docs/guide/serving.md", "sh", "klamm serve events/ --host 0.0.0.0"): f"{_PORT}: tests/cli/test_serve.py",
    ("docs/guide/serving.md", "sh", "klamm serve events/ --config"): f"{_PORT}: tests/cli/test_serve.py",
    ("docs/guide/serving.md", "sh", "podman build"): "there is no podman here",
    (
        "docs/guide/spark-avro-protobuf.md",
        "py",
        "orders = klamm.spark.read",
    ): "tests/spark/test_value_decoder.py has a registry",
    ("docs/guide/spark-on-a-cluster.md", "py", "spark = klamm.spark.session("): _A_CLUSTER,
    ("docs/guide/spark-on-a-cluster.md", "py", "from_server = "): "tests/spark/test_server_client.py logs in",
    (
        "docs/guide/spark-on-a-cluster.md",
        "py",
        "aggregate(spark",
    ): "tests/spark/pipelines/test_at_a_server.py does that",
    ("docs/guide/spark-on-a-cluster.md", "sh", "klamm serve"): _A_CLUSTER,
    ("docs/guide/spark.md", "py", 'spark = klamm.spark.session("events/", master='): _ANOTHER_JVM,
    ("docs/guide/spark.md", "py", 'spark = klamm.spark.session("events/", spark_klamm_classArchive'): _ANOTHER_JVM,
    ("docs/guide/spark.md", "py", "spark = klamm.spark.session(kafka=True)"): _CONNECTOR,
    ("docs/guide/spark.md", "sh", "pip install"): _INSTALLS,
    ("docs/guide/spark.md", "sh", "klamm serve"): _CONNECTOR,
    ("docs/guide/testing-with-klamm.md", "sh", "klamm serve"): "tests/test_testing.py has it with an end",
    ("docs/internals/windows.md", "sh", "cython -3"): "wants a compiler for Windows",
    ("docs/start.md", "sh", "python3 -m venv"): _INSTALLS,
    ("examples/declarative/README.md", "sh", "pip install"): _INSTALLS,
    ("examples/declarative/README.md", "py", "store = klamm.open("): (
        "one order for the example: tests/spark/pipelines/test_declarative.py appends many"
    ),
    ("examples/life/README.md", "sh", "pip install"): _INSTALLS,
    ("examples/life/README.md", "sh", "python examples/life/watch.py"): (
        "waits for a terminal: tests/spark/pipelines/test_life.py draws a window"
    ),
}


class Block(NamedTuple):
    page: str
    language: str
    text: str


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def blocks_of(path: Path) -> list[Block]:
    page = str(path.relative_to(ROOT))
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(page, language, text) for language, text in found]


def python_blocks(page: str) -> list[str]:
    return [block.text for block in blocks_of(ROOT / page) if block.language == "python"]


def starts_spark(page: str) -> bool:
    return any("klamm.spark" in block for block in python_blocks(page))


def is_pasted(block: Block) -> bool:
    """Whether the prompt below gets it."""
    if block.language == "py" and block.page.startswith("docs/guide/"):
        return "\n" + block.text == BEFORE_GUIDE
    return block.language == "python" and block.page in PAGES and not starts_spark(block.page)


def test_every_block_of_a_program_is_run_or_says_why_not() -> None:
    programs = {"python", "py", "sh", "bash", "console", "shell", "python3", "pycon"}
    blocks = [block for path in documents() for block in blocks_of(path) if block.language in programs]
    listed = [*ELSEWHERE, *NOT_RUN]
    assert not set(ELSEWHERE) & set(NOT_RUN)
    covered = {
        block: [entry for entry in listed if entry[:2] == block[:2] and block.text.startswith(entry[2])]
        for block in blocks
        if not is_pasted(block)
    }
    assert [block for block, entries in covered.items() if not entries] == []
    used = {entry for entries in covered.values() for entry in entries}
    assert sorted(set(listed) - used) == [], "listed, and on no page"


def test_every_test_that_runs_a_block_is_there() -> None:
    for test in set(ELSEWHERE.values()):
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_every_test_that_is_named_as_a_reason_is_there() -> None:
    for reason in NOT_RUN.values():
        for path in re.findall(r"(?:tests|docs)/[\w/.-]+\.(?:py|md)", reason):
            assert (ROOT / path).exists(), reason


def test_a_dialogue_with_a_prompt_goes_as_the_page_says() -> None:
    for (page, _, beginning), test in ELSEWHERE.items():
        if beginning == ">>> ":
            assert test.endswith("::test_a_dialogue_with_a_prompt_goes_as_the_page_says")
            parsed = doctest.DocTestParser().get_doctest("".join(python_blocks(page)), {}, page, page, 0)
            assert parsed.examples
            assert doctest.DocTestRunner().run(parsed).failed == 0


@pytest.mark.parametrize(
    ("page", "program"),
    [
        ("docs/guide/life.md", "examples/life/life.py"),
        ("docs/guide/declarative-pipelines.md", "examples/declarative/transformations"),
    ],
)
def test_an_excerpt_has_the_calls_of_the_program_it_is_taken_from(page: str, program: str) -> None:
    path = ROOT / program
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    calls = {name for file in files for name in re.findall(r"([\w.]+)\(", file.read_text())}
    (excerpt,) = (block.text for block in blocks_of(ROOT / page) if block.language == "py" and not is_pasted(block))
    assert sorted(set(re.findall(r"([\w.]+)\(", excerpt)) - calls) == []


def test_a_page_of_the_guide_shows_what_it_takes_for_granted() -> None:
    for page in PAGES[2:]:
        used = "\n".join(python_blocks(page))
        if re.search(r"\bstore\.", used) and "klamm.open(" not in used:
            assert BEFORE_GUIDE in (ROOT / page).read_text(), page


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page) and not starts_spark(page)])
def test_python_of_a_page_works_when_pasted_into_a_prompt(page: str, tmp_path: Path) -> None:
    # One prompt for the page, block after block, as a reader would paste them. -i parses as the prompt does: there, an
    # indented part without a blank line behind it is a syntax error, though not in a file.
    blocks = python_blocks(page)
    if "guide" in page:
        blocks.insert(0, BEFORE_GUIDE)
    prompt = subprocess.run(
        [sys.executable, "-i", "-q", *STRICT],
        input="\n".join([*blocks, "print('reached the end')\n"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Error" not in prompt.stderr and "Warning" not in prompt.stderr, prompt.stderr
    assert "reached the end" in prompt.stdout


# Links


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The fragments that GitHub gives the headings of a page: lower case, no punctuation, hyphens for spaces."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(path.read_text()), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", path.read_text()))


def test_links_between_documents_lead_to_a_file_and_a_heading() -> None:
    broken = []
    for path in documents():
        for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(path.read_text())):
            if "://" in target or target.startswith("mailto:"):
                continue
            there = path.parent / target if target else path
            if not there.exists() or (fragment and there.suffix == ".md" and fragment not in anchors(there)):
                broken.append(f"{path.relative_to(ROOT)} -> {target}#{fragment}")
    assert broken == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    found, left = set[Path](), [ROOT / "README.md"]
    while left:
        path = left.pop()
        found.add(path)
        named = (path.parent / target for target in re.findall(r"\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)", path.read_text()))
        left += {each.resolve() for each in named if each.exists()} - found - set(left)
    assert sorted(str(path.relative_to(ROOT)) for path in set(DOCS.rglob("*.md")) - found) == []


def test_the_architecture_names_files_that_are_there() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|pxi|h))`", page))
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / "src" / "klamm" / name).is_file()) == []
