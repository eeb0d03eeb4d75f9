"""The tables of figures in README.md and bench/README.md: `make docs` writes them from the results, a test compares.

A figure is that of the line that counts of its question (`_results.newest`), so that a new result changes the page, and
nothing else does. A page has a table between <!-- begin: name --> and <!-- end: name -->.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import _results
from _results import Key, Line

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.reference.generate import replace_part  # noqa: E402 (needs the path)


class Row(NamedTuple):
    """A question, and the peers beside which README shows its answer: the name in a line, without version -> ours."""

    label: str
    script: str
    question: str
    peers: dict[str, str]


LMDB = "LMDB, no sync, 1000 a transaction"
SINGLE = "LMDB, no sync, one record a transaction"
WARM = {"Apache Kafka, warm": "warm Apache Kafka"}
CONNECTOR = {"Spark's Kafka connector, Apache Kafka": "Spark's Kafka connector"}
BULK = {
    f"{LMDB}, put": "LMDB, `put`",
    f"{LMDB}, putmulti": "LMDB, `putmulti`",
    f"{LMDB}, putmulti, writemap": "LMDB, `putmulti`, `writemap`",
}
SEND = {  # as BULK, but a line of this script says more of putmulti
    f"{LMDB}, put": "LMDB, `put`, 1,000 a transaction",
    f"{LMDB}, putmulti: one call for 1000": "LMDB, `putmulti`: one call for 1,000",
    f"{LMDB}, putmulti, writemap": "LMDB, `putmulti`, `writemap`",
}
STREAMS = {"Redis": "Redis Streams", "NATS": "NATS JetStream"}
ONE_PARTITION = {"a store of one partition": "a store of one"}

README_ROWS = [
    Row("`append_many` of a list", "bulk_write", "bulk write: append_many of a list", BULK),
    Row("`producer.send`, a call each", "send", "producer.send", SEND),
    Row(
        "one record a commit, `acks=1`",
        "single_append",
        "single append: one record a commit",
        {
            "SQLite, WAL/NORMAL, one record a transaction": "SQLite, WAL",
            "SQLite, WAL/OFF, one record a transaction": "SQLite, WAL, `synchronous=OFF`",
            f"{SINGLE}, default map": "LMDB",
            f"{SINGLE}, writemap": "LMDB, `writemap`",
        },
    ),
    Row(
        'one record a commit, on disk (`acks="all"`), eight writers',
        "contention",
        "eight writers on one partition, acks=all",
        {"one writer": "one writer"},
    ),
    Row("read, as record objects", "read", "read as record objects", {"LMDB, cursor": "LMDB, a cursor"}),
    Row(
        "from an append to another process, spinning",
        "latency",
        "latency across processes, spinning",
        {
            "LMDB, no sync, reader spinning": "LMDB, spinning",
            "LMDB, no sync, reader spinning, writemap": "LMDB, spinning, `writemap`",
        },
    ),
    Row(
        "from an append to another process, asleep on another core",
        "latency",
        "latency across processes, blocking",
        {"a bare futex, in C": "a bare futex, in C", "a pipe, in Python": "a pipe, in Python"},
    ),
    Row(
        "from an append to another process, asleep on the same core",
        "latency",
        "latency across processes, blocking, on one core",
        {"a bare futex, in C": "a bare futex, in C", "a pipe, in Python": "a pipe, in Python"},
    ),
    Row("open 10 GiB, after a kill", "big_log", "open a log of 10240 MiB after a kill", {"of 10 MiB": "10 MiB"}),
    Row(
        "append, to 100 of 10,000 partitions in turn",
        "flat",
        "append in a store of 10,000 partitions, to 100 of them in turn",
        ONE_PARTITION,
    ),
    Row(
        "append, to a random one of 10,000 partitions",
        "flat",
        "append in a store of 10,000 partitions, to a random one",
        ONE_PARTITION,
    ),
    *(
        Row(
            f"commit of offsets, {number}",
            "offsets",
            f"offset commits, {count} processes",
            {"plain SQLite, synchronous=NORMAL": "plain SQLite"},
        )
        for count, number in ((1, "one process"), (64, "64 processes"))
    ),
    Row("`klamm tail` of 10 GiB", "cli", "klamm tail: the last 10", {"of 10 MiB": "of 10 MiB"}),
    Row("`klamm --help`", "cli", "klamm --help", {"import typer": "`import typer`"}),
    Row("server: produce 100 B", "kafka_rdkafka", "produce 100 B with rdkafka_performance", WARM),
    Row("server: consume 100 B", "kafka_rdkafka", "consume 100 B with rdkafka_performance", WARM),
    Row("server: produce 100 B, Java client", "kafka_java", "produce 100 B with the Java client", WARM),
    Row("server: consume 100 B, Java client", "kafka_java", "consume 100 B with the Java client", WARM),
    Row("server: one record, until it is acknowledged", "kafka_latency", "one record, sync, acks=1", WARM),
    Row("server: produce 100 B, bare client", "stream_servers", "produce 100 B, page cache", STREAMS),
    Row("server: consume 100 B, bare client", "stream_servers", "consume 100 B, page cache", STREAMS),
    Row("server: one record, bare client", "stream_servers", "one record, page cache", STREAMS),
    Row("server: one record on disk, bare client", "stream_servers", "one record, on disk", {"Redis": "Redis Streams"}),
    Row(
        "server: start to first answer",
        "kafka_start",
        "from start to the first answer",
        {"Apache Kafka": "Apache Kafka"},
    ),
    Row("server: memory, idle", "kafka_start", "memory, idle", {"Apache Kafka": "Apache Kafka"}),
    Row("server: memory, loaded", "kafka_start", "memory, loaded", {"Apache Kafka": "Apache Kafka"}),
    Row(
        "PySpark: batch read, six columns",
        "spark_read",
        "Spark batch read, six columns",
        {**CONNECTOR, "Spark on Parquet": "Parquet"},
    ),
    Row("PySpark: `archive` to Parquet", "spark_archive", "topic to Parquet by date", CONNECTOR),
]

UNTRACED, BUSY = "¹", "²"
NOTES = {
    UNTRACED: f"{UNTRACED} from a tree that cannot be named: older than that record, or changed while it was measured.",
    BUSY: f"{BUSY} measured while others used the machine.",
}
VERDICTS = {"yes": "met", "unsure": "unsure", "no": "missed"}


def figures() -> str:
    """Return the table of README."""
    lines = _results.newest(_results.read())
    rows = [
        "| | Klamm | beside | ratio (least to most) | goal | script |",
        "|---|---|---|---|---|---|",
    ]
    shown = []
    for row in README_ROWS:
        for number, (peer, name) in enumerate(row.peers.items()):
            line = lines.get((row.script, row.question, peer))
            if line is None:  # not measured yet
                continue
            first = number == 0
            ours = amount(line["figure"], line["unit"]) if first else ""
            theirs = f"{name}: {amount(line['peer_figure'], line['unit'])}"
            script = f"`{row.script}`" if first else ""
            label = row.label if first else ""
            rows.append(f"| {label} | {ours} | {theirs} | {ratio(line)} | {goal(line)} | {script} |")
            shown.append(line)
    return "\n".join([*rows, "", *notes(shown)])


def misses() -> str:
    """Return the list of goals that are missed or unsure, of all scripts."""
    lines = list(_results.newest(_results.read()).values())
    rows = [
        "| script | question | Klamm | beside | ratio (least to most) | goal |",
        "|---|---|---|---|---|---|",
    ]
    shown = [line for line in lines if _results.verdict(line) in ("no", "unsure")]
    for line in sorted(shown, key=lambda line: (line["script"], lines.index(line))):
        ours = amount(line["figure"], line["unit"])
        theirs = f"{line['peer']}: {amount(line['peer_figure'], line['unit'])}" if line["peer"] else ""
        rows.append(f"| `{line['script']}` | {line['question']} | {ours} | {theirs} | {ratio(line)} | {goal(line)} |")
    total = str(_results.score(lines))
    return "\n".join([f"{total[0].upper()}{total[1:]}.", "", *rows, "", *notes(shown)])


def spark_cpu() -> str:
    """Return what a batch read of Spark costs, in seconds of CPU."""
    lines = _results.newest(_results.read())
    rows = ["| | seconds of CPU | Parquet | Spark's Kafka connector |", "|---|---|---|---|"]
    shown = []
    for columns in ("six columns", "all seven columns", "only the value"):
        question = f"Spark batch read, {columns}"
        pair = [lines["spark_read", question, peer] for peer in ("Spark on Parquet", *CONNECTOR)]
        shown += pair
        rows.append(
            f"| {columns} | {pair[0]['cpu_s']:g} | " + " | ".join(f"{line['peer_cpu_s']:g}" for line in pair) + " |"
        )
    return "\n".join([*rows, "", *notes(shown)])


# ---- cells


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit, three digits at most."""
    if unit.endswith("/s"):
        noun = "" if unit == "records/s" else " " + unit.removesuffix("/s")
        for size, prefix in ((1e6, " M"), (1e3, " k")):
            if value >= size:
                return f"{value / size:.3g}{prefix}{noun}/s"
        return f"{value:.3g}{noun}/s"
    if unit == "ns" and value >= 1000:
        return f"{value / 1000:.3g} µs"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def ratio(line: Line) -> str:
    if line["ratio"] is None:
        return mark(line)
    low, high = line["ratio_range"]
    return f"{line['ratio']:g} × ({low:g} to {high:g}){mark(line)}"


def goal(line: Line) -> str:
    if line["want"] is None:
        return ""
    of, relation, limit = line["want"].split()
    sign = "≥" if relation == ">=" else "≤"
    unit = "×" if of == "ratio" else line["unit"]
    return f"{sign} {limit} {unit}: {VERDICTS[_results.verdict(line) or '']}"


def mark(line: Line) -> str:
    return BUSY if _results.is_busy(line) else "" if _results.is_traced(line) else UNTRACED


def notes(lines: list[Line]) -> list[str]:
    """Return what the marks of these lines mean, and from which trees the others are."""
    trees = sorted({str(line["tree"])[:12] for line in lines if _results.is_traced(line)})
    named = " and ".join(f"`{tree}`" for tree in trees)
    told = [f"Measured on `src/` of {named} (`git rev-parse HEAD:src`)."] if trees else []
    return [" ".join(told + [NOTES[sign] for sign in NOTES if sign in {mark(line) for line in lines}])]


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"figures": figures},
    "bench/README.md": {"misses": misses, "spark cpu": spark_cpu},
}


def generated(page: str) -> str:
    """Return the page with its tables as the results have them now."""
    text = (ROOT / page).read_text()
    for name, part in PAGES[page].items():
        text = replace_part(text, name, part(), page)
    return text


def keys_shown() -> set[Key]:
    """Return what README shows, for a test."""
    return {(row.script, row.question, peer) for row in README_ROWS for peer in row.peers}


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(generated(page))
