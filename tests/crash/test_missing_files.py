"""Files of a store that are removed, or put back from an older backup: the truth, or an error that names the file.

A store has everything that leaves a file: segments of which the first were deleted, transactions that were committed,
aborted and left open, a compacted topic, a group. Each file is removed, alone and in pairs, or replaced by its older
self, and the store is opened after a restart of the process ("same boot": the heads are believed), after one of the
machine ("other boot"), and while this process has it open. Then it is read, maintained, appended to and read again. All
of that gives what was there, at the same offsets, and new offsets after the old ones; or it ends in an error that
names a file that was touched. Less, or anything else, is a lost record.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import klamm
from klamm.batch import Builder
from klamm.errors import KlammError
from klamm.store.users import Users
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.procs import Flag, children

SMALL: dict[str, int | float | str] = {"segment.bytes": 400, "index.interval.bytes": 100}
COMPACTED: dict[str, int | float | str] = {
    **SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
}
NOT_DATA = {"klamm.db-shm", "server"}
# Where heads has its device and inode, and the inodes of lock, members and klamm.db (slot.h).
DEVICE_AT, LOCKS_AT = 32, 208


class Log(NamedTuple):
    start: int
    end: int
    stable: int
    records: list[tuple[int, bytes | None, bytes | None]]


Truth = dict[str, Log]
KEYED: set[tuple[int, bytes | None, bytes | None]] = set()  # every record that was ever appended to that topic
PLAIN: set[tuple[int, bytes | None, bytes | None]] = set()


class Stages(NamedTuple):
    """Copies of one store: when it was younger, and at the end, and what was in it then."""

    older: Path
    final: Path
    truth: Truth
    maintained: Truth  # the same after maintain(), which aborts what was left open


def batch(number: int, producer: int, sequence: int) -> bytearray:
    builder = Builder(4096)
    builder.add(b"k", b"transactional %d" % number)
    return bytearray(builder.seal(0, None, producer, 0, sequence, 0x10))


def fill(store: klamm.Store, part: int) -> None:
    """Append one part of what there is; there are two."""
    for number in range(12):
        plain = b"plain %d.%d" % (part, number) + b"." * 60
        offset = store.append("plain", plain)
        assert offset is not None
        PLAIN.add((offset, None, plain))
        key, value = b"key %d" % (number % 4), b"%d" % number
        offset = store.append("keyed", value, key=key)
        assert offset is not None
        KEYED.add((offset, key, value))
    partition = store._acquired().topic("written").partition(0)
    for number, producer in enumerate((10, 11, 12, 13)):
        producer += 10 * part
        partition.append(batch(number, producer, 0))
        store.append("written", b"between %d.%d" % (part, number) + b"." * 60)
        if number < 3:
            partition.append_marker(producer, 1, commit=number == 1)  # the last one stays open
    partition.sync(partition.ends().end)
    with store.consumer("plain", group="readers", wait=0, auto_offset_reset="earliest") as consumer:
        consumer.commit(consumer.poll(max_records=5, timeout=0))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with memory_directory(tmp_path_factory.mktemp("stages")) as root:
        path = root / "store"
        with klamm.open(path) as store:
            for name, settings in (("plain", SMALL), ("keyed", COMPACTED), ("written", SMALL)):
                store.topics.create(name, 1, settings)
            fill(store, 0)
            store["keyed"].compact(force=True)
            store["plain"].delete_records({0: 7})
        shutil.copytree(path, root / "older")
        with klamm.open(path) as store:
            store.topics.create("late", 1)
            store.append("late", b"late")
            fill(store, 1)
            store["keyed"].compact(force=True)
            store["plain"].delete_records({0: 11})
            for name in ("plain", "written"):
                store.append(name, b"the last one")
            truth = truth_of(store)
        assert len(truth["plain"].records) > 10
        assert truth["written"].stable < truth["written"].end
        shutil.copytree(path, root / "maintained")
        with klamm.open(root / "maintained") as store:
            compare(truth_of(store), truth, "in a copy")
            store.maintain()
            maintained = truth_of(store)
        assert maintained["written"].stable == maintained["written"].end
        yield Stages(root / "older", path, truth, maintained)


def truth_of(store: klamm.Store) -> Truth:
    found = {}
    core = store._acquired()
    for name in sorted(topic.name for topic in core.catalog.topics()):
        partition = core.topic(name).partition(0)
        start, end, stable, _, _ = partition.ends()
        with store.consumer(name, wait=0) as consumer:
            records = [(record.offset, record.key, record.value) for record in consumer]
        found[name] = Log(start, end, stable, records)
    return found


def files_of(path: Path) -> list[str]:
    return sorted(
        str(each.relative_to(path)) for each in path.rglob("*") if each.is_file() and each.name not in NOT_DATA
    )


def copy_of(stages: Stages, to: Path, boot: str) -> Path:
    """Return a copy of the store; for the "same boot" its heads are made to name the copy's own inodes."""
    shutil.copytree(stages.final, to)
    if boot == "same":
        stamp(to)
    return to


def stamp(to: Path) -> None:
    """Let heads name the inodes of the files beside it, as if it had always been there."""
    with open(to / "heads", "r+b") as heads:
        status = os.fstat(heads.fileno())
        heads.seek(DEVICE_AT)
        heads.write(struct.pack("<QQ", status.st_dev, status.st_ino))
        heads.seek(LOCKS_AT)
        heads.write(struct.pack("<QQQ", *(os.stat(to / name).st_ino for name in ("lock", "members", "klamm.db"))))


def outcome(path: Path, stages: Stages) -> str:
    """Use the store as people do, and compare. "truth", or the error."""
    try:
        with klamm.open(path) as store:
            compare(truth_of(store), stages.truth, "when it was opened")
            store.maintain()
            left = store._acquired().topic("written").partition(0).open_transactions()
            compare(truth_of(store), stages.truth if left else stages.maintained, "after maintain()")
            for name, log in stages.maintained.items():
                assert store.append(name, b"new", key=b"new") == log.end, f"{name}: an offset that is not the next"
        with klamm.open(path) as store:
            for name, log in truth_of(store).items():
                wanted = stages.maintained[name].records
                assert [each for each in log.records if each in wanted] == wanted, f"{name}: at the end"
        return "truth"
    except KlammError as error:
        return str(error)


def compare(found: Truth, truth: Truth, when: str) -> None:
    assert sorted(found) == sorted(truth), f"{when}: topics"
    for name, log in truth.items():
        assert found[name][:3] == log[:3], f"{when}: {name}: start, end, last stable offset"
        records = found[name].records
        if name == "keyed":  # what compaction took away may come back with an older file; it is still the truth
            assert set(records) <= KEYED, f"{when}: {name}: invented"
            records = [record for record in records if record in log.records]
        assert records == log.records, f"{when}: {name}"


def names_one(error: str, files: tuple[str, ...]) -> bool:
    """Whether the error names a file that was touched, or, of a segment, its directory and what is missing."""
    return any(file in error or (file.endswith(".log") and os.path.dirname(file) in error) for file in files)


class Case(NamedTuple):
    files: tuple[str, ...]
    how: str  # removed; older: in place, as `cp` does it; replaced: by another file
    boot: str  # same, other; running: this process has it open; beside: another one has


# A mapped file that is cut while a process uses it is a SIGBUS, whatever the program does; and SQLite cannot help it if
# its file is overwritten while a process has it open.
IMPOSSIBLE = {Case((name,), "older", boot) for name in ("heads", "klamm.db") for boot in ("running", "beside")}


def strike(case: Case, stages: Stages, path: Path) -> None:
    for file in case.files:
        if case.how == "removed":
            (path / file).unlink()
        elif case.how == "older":
            (path / file).write_bytes((stages.older / file).read_bytes())
        else:
            shutil.copyfile(stages.older / file, path / "put-back")
            os.rename(path / "put-back", path / file)
    if case.files == ("heads",) and case.how != "removed" and case.boot == "same":
        stamp(path)


def check(case: Case, stages: Stages, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if case.boot == "beside":
        copy_of(stages, path, "other")
        told = beside(case, stages, path)
    elif case.boot == "running":
        copy_of(stages, path, "other")
        with klamm.open(path) as store:
            compare(truth_of(store), stages.truth, "before")
            strike(case, stages, path)
            told = outcome(path, stages)
    else:
        strike(case, stages, copy_of(stages, path, case.boot))
        told = outcome(path, stages)
    assert told == "truth" or names_one(told, case.files), f"{case}: the error names no file of it: {told}"
    if told != "truth":
        repaired(case, stages, path)


def beside(case: Case, stages: Stages, path: Path) -> str:
    """Let another process have the store open while it is struck and used by this one; then use it there, too."""
    opened, struck = Flag(f"{path}-opened"), Flag(f"{path}-struck")
    for flag in (opened, struck):
        Path(flag.path).unlink(missing_ok=True)

    def other() -> str:
        with klamm.open(path) as store:
            compare(truth_of(store), stages.truth, "before")
            opened.up()
            struck.wait()
            try:
                found = truth_of(store)
                for name, log in stages.truth.items():
                    records = [each for each in found[name].records if each in log.records]
                    assert records == log.records, f"beside: {name}"
            except KlammError as error:
                return str(error)
        return "truth"

    with children() as start:
        child = start(other)
        opened.wait()
        strike(case, stages, path)
        told = outcome(path, stages)
        struck.up()
        also = child.answer()
    assert also == "truth" or names_one(also, case.files), f"{case}: beside: {also}"
    return told


def repaired(case: Case, stages: Stages, path: Path) -> None:
    """After the error: `check(repair=True)` keeps what is there, invents nothing, and the store can be used."""
    report = klamm.check(path, repair=True)
    with klamm.open(path) as store:
        found = truth_of(store)
        for name, log in found.items():
            if name in stages.truth:
                extra = set(log.records) - set(stages.truth[name].records)
                if name == "plain" and "heads" in case.files and len(case.files) > 1:
                    extra -= (
                        PLAIN  # only `heads` and `recovery` knew where the log starts: what was deleted is there again
                    )
                assert all(value == b"new" or name == "written" for _, _, value in extra), f"{case}: {name}: {extra}"
                store.append(name, b"newer", key=b"new")
    left = [str(each) for each in klamm.check(path).breaches if not each.repaired]
    assert not left, (case, [str(each) for each in report.breaches], left)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


def singles(stages: Stages) -> list[Case]:
    files = files_of(stages.final)
    boot_count = ("same", "other", "running", "beside")
    cases = [Case((file,), "removed", boot) for file in files for boot in boot_count]
    changed = [
        file
        for file in files
        if (stages.older / file).exists() and (stages.older / file).read_bytes() != (stages.final / file).read_bytes()
    ]
    cases += [Case((file,), how, boot) for file in changed for how in ("older", "replaced") for boot in boot_count]
    return [case for case in cases if case not in IMPOSSIBLE]


def test_each_file_that_is_removed_or_put_back_is_made_again_or_named(stages: Stages, scratch: Path) -> None:
    cases = singles(stages)
    assert len({case.files for case in cases}) > 25
    run_cases(cases, lambda case, worker: check(case, stages, scratch / str(worker)))


def test_pairs_of_files_that_are_removed_are_made_again_or_named(stages: Stages, scratch: Path) -> None:
    dice = random.Random(seed_of())
    run_cases(dice.sample(pairs(stages), 24), lambda case, worker: check(case, stages, scratch / str(worker)))


def test_a_repaired_log_that_was_compacted_keeps_its_gaps(stages: Stages, scratch: Path) -> None:
    keyed = sorted(file for file in files_of(stages.final) if "/keyed-" in file)
    (checkpoint,) = (file for file in keyed if file.endswith("/cleaner-checkpoint"))
    others = [file for file in keyed if file.endswith((".log", "/recovery"))]
    run_cases(
        [
            Case((file, checkpoint), "removed", boot)
            for file in others
            for boot in ("same", "other", "running", "beside")
        ],
        lambda case, worker: check(case, stages, scratch / str(worker)),
    )


def test_what_was_aborted_stays_so_without_the_files_that_tell(stages: Stages, scratch: Path) -> None:
    written = sorted(file for file in files_of(stages.final) if "/written-" in file)
    (recovery,) = (file for file in written if file.endswith("/recovery"))
    gone = [file for file in written if file.endswith(".aborted")]
    assert len(gone) > 2
    run_cases(
        [Case((file, recovery), "removed", boot) for file in gone for boot in ("same", "other", "running", "beside")],
        lambda case, worker: check(case, stages, scratch / str(worker)),
    )
    case = Case((*gone, recovery), "removed", "other")
    path = copy_of(stages, scratch / "read-only", case.boot)
    strike(case, stages, path)
    with klamm.open(path, read_only=True) as store:
        compare(truth_of(store), stages.truth, "read-only")


def test_a_log_without_segment_and_recovery_point_goes_on_where_its_head_says(stages: Stages, scratch: Path) -> None:
    late = {file.rpartition("/")[2]: file for file in files_of(stages.final) if "/late-" in file}
    gone = (late["00000000000000000000.log"], late["recovery"])
    for boot in ("same", "other"):
        case = Case(gone, "removed", boot)
        check(case, stages, scratch / "checked")
        path = copy_of(stages, scratch / boot, boot)
        strike(case, stages, path)
        klamm.check(path, repair=True)
        with klamm.open(path) as store:
            assert store.append("late", b"newer") == 1, boot


def test_a_log_without_its_recovery_point_and_a_segment_is_not_taken_for_whole(stages: Stages, scratch: Path) -> None:
    cases = []
    for topic in ("plain", "keyed", "written"):
        files = sorted(file for file in files_of(stages.final) if f"/{topic}-" in file)
        (recovery,) = (file for file in files if file.endswith("/recovery"))
        first, *_, last = (file for file in files if file.endswith(".log"))
        cases += [Case((file, recovery), "removed", boot) for file in (first, last) for boot in ("same", "other")]
    run_cases(cases, lambda case, worker: check(case, stages, scratch / str(worker)))


@pytest.mark.soak
def test_every_pair_of_files_that_are_removed_is_made_again_or_named(stages: Stages, scratch: Path) -> None:
    run_cases(pairs(stages), lambda case, worker: check(case, stages, scratch / str(worker)))


def pairs(stages: Stages) -> list[Case]:
    found = itertools.combinations(files_of(stages.final), 2)
    return [Case(pair, "removed", boot) for pair in found for boot in ("same", "other", "running", "beside")]


def add_user(store: klamm.Store) -> None:
    Users(store._acquired().catalog).add("alice", "a secret of hers")


def commit_once(store: klamm.Store) -> None:
    with store.transaction() as tx:
        tx.once("loader", 17)
        tx.send("plain", b"once")


def commit_transaction(store: klamm.Store) -> None:
    with store.transaction() as tx:
        tx.send("plain", b"transactional")


def commit_offsets(store: klamm.Store) -> None:
    with store.consumer("plain", group="readers", wait=0, auto_offset_reset="earliest") as consumer:
        consumer.commit(consumer.poll(max_records=2, timeout=0))


WRITES: dict[str, Callable[[klamm.Store], None]] = {
    "a user": add_user,
    "a number": commit_once,
    "a transaction": commit_transaction,
    "offsets": commit_offsets,
}


@pytest.mark.parametrize("how", ["in place", "replaced"])
@pytest.mark.parametrize("write", WRITES)
def test_a_klamm_db_without_the_last_durable_write_is_refused_until_it_is_accepted(
    stages: Stages, scratch: Path, write: str, how: str
) -> None:
    """Offsets alone are no durable write: without them only another file is refused."""
    path = copy_of(stages, scratch / "store", "same")
    with klamm.open(path) as store:
        assert store.append("plain", b"before") is not None
    older = (path / "klamm.db").read_bytes()
    with klamm.open(path) as store:
        WRITES[write](store)
    assert not (path / "klamm.db-wal").exists()
    if how == "in place":
        (path / "klamm.db").write_bytes(older)
    else:
        (path / "put-back").write_bytes(older)
        os.rename(path / "put-back", path / "klamm.db")
    if (write, how) == ("offsets", "in place"):
        klamm.open(path).close()
        return
    for _ in range(2):
        with pytest.raises(klamm.StoreError, match="restored from a backup") as caught:
            klamm.open(path)
        assert f"{path}/klamm.db: is " in str(caught.value)
    report = klamm.check(path, repair=True)
    assert report.ok and report.breaches
    with klamm.open(path) as store:
        assert store.append("plain", b"new") == store.topics.describe("plain").partitions[0].end - 1


@pytest.mark.parametrize("gone", ["klamm.db-wal", "klamm.db-shm"])
def test_without_the_log_of_klamm_db_a_store_is_refused_and_without_its_index_it_is_as_it_was(
    stages: Stages, scratch: Path, gone: str
) -> None:
    path = copy_of(stages, scratch / "store", "same")

    def die() -> None:
        store = klamm.open(path)
        add_user(store)
        os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        start(die).ended()
    assert (path / "klamm.db-wal").stat().st_size > 0
    (path / gone).unlink()
    if gone == "klamm.db-shm":
        assert outcome(path, stages) == "truth"
        return
    with pytest.raises(klamm.StoreError, match="is older than the logs"):
        klamm.open(path)
    assert klamm.check(path, repair=True).ok
    assert outcome(path, stages) == "truth"
