"""The scripts of bench/ run and sign their answers; what they answer is theirs (`make bench`)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.java_tools import need_kafka
from tests.procs import STRICT

ROOT = Path(__file__).parent.parent
PATH = "/usr/sbin:/usr/bin:/bin"
KEYS = {"question", "figure", "figure_range", "unit", "peer", "peer_figure", "ratio", "ratio_range", "want", "ok"}
KEYS |= {"machine", "busy", "tree", "commit", "dirty", "at", "seconds"}


ONE_ROUND = ("cli", "contention", "kafka_acks_all")  # which start processes in each; a second one shows nothing more


def answers(script: str, tmp_path: Path, seconds: float = 200) -> list[dict[str, object]]:
    rounds = ["--rounds=1"] if script in ONE_ROUND else []
    run = subprocess.run(
        [sys.executable, *STRICT, ROOT / "bench" / f"{script}.py", "--quick", *rounds],
        capture_output=True,
        text=True,
        env={"KLAMM_BENCH_DIR": str(tmp_path), "PATH": PATH},
        timeout=seconds,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    "script",
    [
        *("import_time", "single_append", "table", "contention", "blocks_ahead", "fetch_cut", "cli"),
        *("kafka_acks_all", "kafka_acl", "kafka_new_topic"),
        pytest.param("lock_word", marks=pytest.mark.soak),  # compiles an older commit first
        pytest.param("console_load", marks=pytest.mark.soak),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("copy_topics", "cluster_store")),  # start servers
        pytest.param("console_paint", marks=pytest.mark.soak),  # needs a browser
        pytest.param("clone_to_page", marks=pytest.mark.soak),  # of which this starts the last part alone
    ],
)
def test_each_answer_is_one_signed_line_of_json(script: str, tmp_path: Path) -> None:
    signed(answers(script, tmp_path), tmp_path)


@pytest.mark.soak  # each waits for a warm Apache Kafka of its own
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "script",
    [
        *("kafka_throughput", "kafka_rdkafka", "kafka_java", "kafka_latency", "kafka_start", "kafka_parked"),
        "kafka_idle_fetch",
        "kafka_transactions",
        *("kafka_tls", "kafka_logins"),
    ],
)
def test_each_answer_beside_apache_kafka_is_one(script: str, tmp_path: Path) -> None:
    need_kafka()
    signed(answers(script, tmp_path, 200), tmp_path)


@pytest.mark.soak  # needs servers that no other test needs
@pytest.mark.timeout(240)
def test_each_answer_beside_redis_and_nats_is_one(tmp_path: Path) -> None:
    if missing := [name for name in ("redis-server", "nats-server") if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"Debian's {' and '.join(missing)} are not installed")
    signed(answers("stream_servers", tmp_path, 200), tmp_path)


@pytest.mark.soak  # each starts two JVMs
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "script",
    [
        *("spark_trigger", "spark_read", "spark_sink", "spark_scan", "spark_archive", "spark_life"),
        *("spark_start", "spark_state", "spark_realtime", "spark_server"),
    ],
)
def test_each_answer_of_spark_is_one(script: str, tmp_path: Path) -> None:
    need_kafka()
    pytest.importorskip("pyspark")
    if not any((ROOT / ".tools" / "spark-kafka").glob("spark-sql-kafka*.jar")):
        pytest.skip("there is no Kafka connector of Spark's: `make tools` fetches it")
    signed(answers(script, tmp_path, 200), tmp_path)


def test_every_script_is_in_the_list() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "bench" / "README.md").read_text().split("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))


def signed(lines: list[dict[str, object]], tmp_path: Path) -> None:
    assert lines
    for line in lines:
        assert line.keys() >= KEYS
        assert line["ok"] in ("yes", "unsure", "no", None)
        assert (line["ok"] is None) == (line["want"] is None)
    assert list(tmp_path.iterdir()) == []  # what was measured is gone


def test_every_script_asks_a_question_in_its_first_line() -> None:
    for script in (ROOT / "bench").glob("[a-z]*.py"):
        first = script.read_text().splitlines()[0]
        assert first.startswith('"""') and first.endswith("?"), script.name
