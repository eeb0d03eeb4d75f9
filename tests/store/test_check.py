"""`check` finds what is broken, says where, and `repair` takes no good record away."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from klamm.batch import Header, walk
from klamm.errors import CorruptBatch, NotAStore, ReadOnly
from klamm.log import _head, head, index, segment
from klamm.store.check import Report, check
from klamm.store.repair import empty_batches
from tests.rig import dies, killed_at
from tests.store.logs import batch, contents, fill, make_topic, opened

ROOT = Path(__file__).parent.parent.parent
SMALL = {"segment.bytes": 500, "index.interval.bytes": 100}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Twenty batches of three records in four segments, with indexes, a recovery point and producers."""
    path = tmp_path / "store"
    with opened(path) as core:
        make_topic(core, "orders", 1, SMALL)
        partition = core.topic("orders").partition(0)
        fill(partition, 19)
        partition.append(batch([b"19-0", b"19-1", b"19-2"], 1019, producer=(7, 0, 0)))
        partition.checkpoint()
    return path


WHOLE = [b"%d-%d" % (number, n) for number in range(20) for n in range(3)]


def files_of(store: Path) -> Path:
    (topic,) = (store / "topics").iterdir()
    return topic / "0"


def read(store: Path) -> list[bytes]:
    with opened(store) as core:
        return contents(core.topic("orders").partition(0))


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    with open(path, "r+b") as file:  # the same file: an inode of its own would be noticed at once
        file.write(data)


def batches_of(path: Path) -> list[tuple[int, Header]]:
    found, position = [], 0
    for header in walk(path.read_bytes()):
        found.append((position, header))
        position += header.size
    return found


def repaired(store: Path) -> Report:
    report = check(store, repair=True)
    assert report.breaches and report.ok, report
    assert check(store).breaches == []
    return report


# Where nothing is wrong


def test_a_whole_store_has_no_breach_and_is_counted(store: Path) -> None:
    report = check(store)
    assert report.ok and report.breaches == []
    assert (report.topics, report.partitions, report.segments) == (1, 1, 4)
    assert (report.batches, report.records) == (20, 60)
    assert report.size == sum(path.stat().st_size for path in files_of(store).glob("*.log"))


def test_a_check_changes_no_file(store: Path) -> None:
    flip(files_of(store) / f"{15:020}.log", 100)

    def look() -> dict[str, tuple[int, bytes]]:
        paths = [path for path in store.rglob("*") if path.is_file() and not path.name.startswith("klamm.db-")]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = look()
    assert not check(store).ok
    assert look() == before


def test_a_store_in_use_has_no_breach(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 2, {"segment.bytes": 20_000, "index.interval.bytes": 500, "retention.bytes": 60_000})
        partitions = core.topic("orders").partitions()
        stop = threading.Event()

        def write(which: int) -> None:
            number = 0
            while not stop.is_set():
                fill(partitions[which], 1, number)
                partitions[which].append(batch([b"x"], producer=(which, 0, number)))
                number += 1
                time.sleep(0.0002)

        threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 1.5
            while time.monotonic() < end or not partitions[0].ends().start:
                assert check(core).breaches == []
                partitions[0].cleanup.expire()
                assert check(tmp_path / "store").breaches == []
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert partitions[0].ends().start > 0


def test_a_writer_that_died_is_no_breach(store: Path) -> None:
    code = """
import sys
from tests.crash.stores import without_maintenance
from tests.store.logs import opened, fill
from klamm.disk import _os
with opened(sys.argv[1]) as core:
    without_maintenance(core)  # it writes, too
    partition = core.topic("orders").partition(0)
    fill(partition, 1, 20)
    _os.trap(2, kinds=_os.WRITE, signal=9)
    fill(partition, 1, 21)
    fill(partition, 1, 22)
"""
    died = subprocess.run([sys.executable, "-c", code, str(store)], cwd=ROOT, check=False)
    assert died.returncode == -9
    with opened(store) as core:
        now = head.Log(core.heads, 1, str(files_of(store)), None, 1).snapshot()
        assert (files_of(store) / f"{now.active_base:020}.log").stat().st_size > now.position
        assert check(core).breaches == []


def test_an_index_that_nobody_has_begun_is_no_breach(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        fill(core.topic("orders").partition(0), 1)
        (files_of(tmp_path / "store") / f"{0:020}.index").write_bytes(b"")
        assert check(core).breaches == []


@pytest.mark.parametrize("meanwhile", ["rolled", "expired"])
def test_segments_that_come_and_go_under_our_eyes_are_no_breach(
    store: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    with opened(store) as core:
        partition = core.topic("orders").partition(0)
        bases, done = segment.bases, [False]

        def listing(directory: str, suffix: str = ".log") -> list[int]:
            if not done[0]:
                done[0] = True
                if meanwhile == "rolled":
                    fill(partition, 20, 20)
                else:
                    partition.cleanup.delete_before(40)
            return bases(directory, suffix)

        monkeypatch.setattr(segment, "bases", listing)
        assert check(core).breaches == []
        assert done[0]


def test_a_topic_deleted_under_our_eyes_is_no_breach(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store) as core:
        look = core.catalog.check

        def looking() -> list[str]:
            core.catalog.delete_topic("orders")
            shutil.rmtree(files_of(store).parent)
            return look()

        monkeypatch.setattr(core.catalog, "check", looking)
        assert check(core, repair=True).breaches == []


# Damage, found and mended


def test_a_flipped_bit_anywhere_in_a_log_is_found_and_costs_its_batch_at_most(store: Path) -> None:
    original = store.parent / "original"
    shutil.copytree(store, original)
    chance = random.Random(5)
    fields = [
        range(8),
        range(8, 12),
        range(16, 17),
        range(17, 61),
        range(61, 80),
    ]  # offset, length, magic, ..., records
    found = [(path, *each) for path in sorted(files_of(store).glob("*.log")) for each in batches_of(path)]
    for number, (path, start, header) in enumerate(found):
        position = start + chance.choice(fields[number % len(fields)])
        shutil.rmtree(store)
        shutil.copytree(original, store)
        repaired_copy(store)
        flip(path, position, 1 << chance.randrange(8))
        first = check(store).breaches
        assert any(each.path == str(path) and each.position == start for each in first), (path, position, first)
        check(store, repair=True)
        assert check(store).breaches == []
        lost = set(WHOLE[header.base_offset : header.next_offset])
        kept = read(store)
        assert kept in ([value for value in WHOLE if value not in lost], WHOLE)
        if position - start < 8 and header.next_offset < 60:
            assert kept == WHOLE  # an offset alone can be put back


def repaired_copy(store: Path) -> None:
    """A copied store is recovered at its first use; do it."""
    assert read(store) == WHOLE


def test_offsets_after_damage_stay_what_they_were(store: Path) -> None:
    path = files_of(store) / f"{15:020}.log"
    position, header = next(each for each in batches_of(path) if each[0] + each[1].size > 100)
    flip(path, 100)
    damaged = path.read_bytes()[position : position + header.size]
    repaired(store)
    with opened(store) as core:
        partition = core.topic("orders").partition(0)
        assert partition.ends().end == 60
        with partition.reader(30) as reader:
            reader.read()
        assert partition.ends().leader_epoch > 0
        fill(partition, 1, 20)
        assert partition.ends().end == 63
    assert [each.read_bytes() for each in files_of(store).glob("*.cut-*")] == [damaged]


def test_what_was_never_committed_does_not_come_back_by_a_repair(store: Path) -> None:
    with open(sorted(files_of(store).glob("*.log"))[-1], "ab") as file:
        data = batch([b"never committed"])
        data[:8] = (60).to_bytes(8, "big")
        file.write(data)
    flip(store / "heads", head.SLOT_BYTES + 64)  # intent: its writer died, so the bytes alone are no breach
    flip(files_of(store) / f"{15:020}.log", 100)
    check(store, repair=True)
    assert check(store).breaches == []
    assert b"never committed" not in read(store)


def test_a_batch_inside_of_a_damaged_record_is_not_taken_for_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        partition = core.topic("orders").partition(0)
        inner = batch([b"an impostor"])
        inner[:8] = (1).to_bytes(8, "big")
        for value in (b"first", bytes(inner) + b"tail", b"third"):
            partition.append(batch([value]))
    path = files_of(tmp_path / "store") / f"{0:020}.log"
    flip(path, batches_of(path)[2][0] - 3)  # in "tail"
    repaired(tmp_path / "store")
    assert read(tmp_path / "store") == [b"first", b"third"]


def test_a_reader_goes_on_after_a_repair_beside_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        partition = core.topic("orders").partition(0)
        fill(partition, 5)
        with partition.reader(12) as reader:
            assert len(reader.read()) > 0  # it has the last segment open, at its end
            flip(files_of(tmp_path / "store") / f"{0:020}.log", 120)
            assert check(core, repair=True).ok
            fill(partition, 1, 5)
            (header,) = walk(reader.read())
            assert header.base_offset == 15
        assert check(core).breaches == []


def test_a_damaged_base_offset_is_put_back_and_nothing_is_lost(store: Path) -> None:
    path = files_of(store) / f"{15:020}.log"
    flip(path, batches_of(path)[2][0] + 6)
    report = repaired(store)
    assert "nothing was lost" in str(report.breaches[0])
    assert read(store) == WHOLE


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_missing_segment_is_found_and_the_others_stay(store: Path, which: int) -> None:
    segments = sorted(files_of(store).glob("*.log"))
    base = int(segments[which].stem)
    end = int(segments[which + 1].stem) if which < 3 else 60
    segments[which].unlink()
    report = repaired(store)
    assert any(f"offsets {base} to {end - 1} are missing" in each.message for each in report.breaches)
    assert read(store) == WHOLE[:base] + WHOLE[end:]


def test_all_segments_gone_leaves_an_empty_log_that_goes_on_at_its_offset(store: Path) -> None:
    for path in files_of(store).glob("*.log"):
        path.unlink()
    repaired(store)
    with opened(store) as core:
        partition = core.topic("orders").partition(0)
        assert (partition.ends().start, partition.ends().end) == (60, 60)
        fill(partition, 1, 20)
        assert contents(partition) == [b"20-0", b"20-1", b"20-2"]


@pytest.mark.parametrize("which", [0, 3])
def test_a_segment_cut_at_any_length_keeps_what_is_before_and_after(store: Path, which: int) -> None:
    path = sorted(files_of(store).glob("*.log"))[which]
    original = store.parent / "original"
    shutil.copytree(store, original)
    found = batches_of(path)
    for size in range(0, path.stat().st_size, 71):
        shutil.rmtree(store)
        shutil.copytree(original, store)
        repaired_copy(store)
        os.truncate(path, size)
        assert check(store).breaches != []
        repaired(store)
        left = [header for start, header in found if start + header.size <= size]
        gone = [header for start, header in found if start + header.size > size]
        after = WHOLE[gone[-1].next_offset :]
        assert read(store) == WHOLE[: gone[0].base_offset] + after
        assert len(left) + len(gone) == len(found)


def test_bytes_beyond_the_commit_are_found_and_cut_off(store: Path) -> None:
    path = sorted(files_of(store).glob("*.log"))[-1]
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"stray")
    with opened(store) as core:
        (breach,) = check(core).breaches
        assert (breach.path, breach.position) == (str(path), size)
        (breach,) = check(core, repair=True).breaches
        assert breach.repaired
    assert [each.read_bytes() for each in path.parent.glob(f"{path.name}.cut-*")] == [b"stray"]
    assert path.stat().st_size == size
    assert read(store) == WHOLE
    assert check(store).breaches == []


def test_a_stray_segment_after_the_active_one_is_moved_aside(store: Path) -> None:
    path = files_of(store) / f"{99:020}.log"
    path.write_bytes(empty_batches(99, 101, 0))
    assert any(each.path == str(path) for each in repaired(store).breaches)
    assert not path.exists()
    assert [each.read_bytes() for each in path.parent.glob(f"{path.name}.cut-*")] == [empty_batches(99, 101, 0)]
    assert read(store) == WHOLE


def test_a_log_that_cannot_be_recovered_can_be_mended(store: Path) -> None:
    flip(files_of(store) / f"{45:020}.log", 70)
    copy = store.parent / "copy"
    shutil.copytree(store, copy)  # heads cannot be believed there
    (files_of(copy) / f"{45:020}.index").unlink()  # so that recovery reads what lies below its point, too
    with pytest.raises(CorruptBatch), opened(copy) as core:
        core.topic("orders").partition(0)
    assert not check(copy).ok
    assert check(copy, repair=True).ok
    assert check(copy).breaches == []
    assert set(read(copy)) < set(WHOLE) and len(read(copy)) >= 54


def test_a_log_that_ends_with_a_whole_batch_before_its_recovery_point_is_found_and_mended(store: Path) -> None:
    copy = store.parent / "copy"
    shutil.copytree(store, copy)  # heads cannot be believed there
    path = sorted(files_of(copy).glob("*.log"))[-1]
    position, header = batches_of(path)[-1]
    os.truncate(path, position)
    with pytest.raises(CorruptBatch, match="the file ends here"), opened(copy) as core:
        core.topic("orders").partition(0)
    (breach,) = check(copy).breaches
    assert breach.message == f"offsets {header.base_offset} to {header.next_offset - 1} are missing"
    repaired(copy)
    assert read(copy) == WHOLE[: header.base_offset]


@pytest.mark.parametrize("epoch", [1 << 30, 2**31 - 1])
def test_an_epoch_that_the_log_never_had_is_put_back_without_a_recovery_point_too(store: Path, epoch: int) -> None:
    copy = store.parent / "copy"
    shutil.copytree(store, copy)  # heads cannot be believed there
    (files_of(copy) / "recovery").unlink()
    path = files_of(copy) / f"{45:020}.log"
    with path.open("r+b") as file:
        file.seek(batches_of(path)[1][0] + 12)
        file.write(epoch.to_bytes(4, "big"))
    with pytest.raises(CorruptBatch, match=f"leader epoch is {epoch}"), opened(copy) as core:
        core.topic("orders").partition(0)
    repaired(copy)
    assert read(copy) == WHOLE


@pytest.mark.parametrize("name", ["recovery", "producers", "snapshot"])
def test_damage_beside_the_log_is_found_and_costs_no_record(store: Path, name: str) -> None:
    path = max(each for each in files_of(store).iterdir() if each.name.endswith(name))  # the latest snapshot
    flip(path, 9)
    assert repaired(store).breaches[0].path == str(path)
    with opened(store) as core:
        partition = core.topic("orders").partition(0)
        assert contents(partition) == WHOLE
        assert partition.append(batch([b"19-0", b"19-1", b"19-2"], 1019, producer=(7, 0, 0))) == 57  # known still


def test_a_damaged_head_is_made_anew_from_the_log(store: Path) -> None:
    with opened(store) as core:
        seq = core.topic("orders").partition(0).snapshot().seq
    flip(store / "heads", head.SLOT_BYTES + 128 + 64 * (seq % 8) + 3)
    (breach, *_) = check(store).breaches
    assert (breach.path, breach.position) == (str(store / "heads"), head.SLOT_BYTES)
    repaired(store)
    assert read(store) == WHOLE


@pytest.mark.parametrize("at", [40, 44, 2048 + 36, "bucket"])
def test_a_table_of_producers_whose_links_are_wrong_is_found_and_made_again(store: Path, at: int | str) -> None:
    """A list without its only producer, a producer without its list, a bucket without its producer."""
    path = files_of(store) / "producers"
    data = bytearray(path.read_bytes())
    if isinstance(at, str):
        at = next(n for n in range(2048 + 44, len(data), 192) if data[n])
    data[at] ^= 1
    with opened(store) as core:  # in place, and unmapped: nobody has used it yet
        with path.open("r+b") as file:
            file.write(data)
        (breach,) = check(core).breaches
        assert breach.path == str(path)
        assert check(core, repair=True).ok
        assert check(core).breaches == []
        partition = core.topic("orders").partition(0)
        assert partition.append(batch([b"19-0", b"19-1", b"19-2"], 1019, producer=(7, 0, 0))) == 57
        assert partition.log.was_duplicate


# Indexes


def index_of(store: Path, base: int) -> index.Index:
    """Of the active segment, 45, or of a closed one."""
    directory = files_of(store)
    end_position = (directory / f"{base:020}.log").stat().st_size if base == 45 else None
    return index.Index(str(directory), base, end_position=end_position)


@pytest.mark.parametrize("base", [15, 45])
@pytest.mark.parametrize("lie", ["offset", "position", "time", "checksum", "header"])
def test_an_index_that_lies_is_found_and_made_anew(store: Path, base: int, lie: str) -> None:
    path = files_of(store) / f"{base:020}.index"
    with index_of(store, base) as found:
        entries = [found.entry(number) for number in range(found.count)]
    first = entries[0]
    assert first is not None
    forged = {
        "offset": first._replace(offset=first.offset + 1),
        "position": first._replace(position=first.position + 1),
        "time": first._replace(max_timestamp=5),
    }.get(lie)
    if forged is not None:
        with open(path, "r+b") as file:
            file.seek(index.HEADER_SIZE)
            file.write(_head.index_entry(*forged))
    else:
        flip(path, 3 if lie == "header" else index.HEADER_SIZE + 3)
    with opened(store) as core:  # fewer entries than there were: writers must go on after the new ones
        core.catalog.alter_settings("orders", {"index.interval.bytes": 300})
    (breach,) = check(store).breaches
    assert (breach.path, breach.position) == (str(path), 0 if lie == "header" else index.HEADER_SIZE)
    with opened(store) as core:
        epoch = core.topic("orders").partition(0).ends().leader_epoch
        assert check(core, repair=True).ok
        assert core.topic("orders").partition(0).ends().leader_epoch == epoch
        fill(core.topic("orders").partition(0), 5, 20)
        assert check(core).breaches == []
        assert len(contents(core.topic("orders").partition(0))) == 75
    with index_of(store, base) as found:
        assert found.count > 0 and found.entry(0) in entries


def test_a_missing_index_or_one_of_another_segment_is_no_breach(store: Path) -> None:
    (files_of(store) / f"{15:020}.index").unlink()
    shutil.copyfile(files_of(store) / f"{0:020}.index", files_of(store) / f"{30:020}.index")
    assert check(store).breaches == []


# The store around


def test_directories_that_no_topic_has_are_moved_aside(store: Path) -> None:
    (files_of(store).parent / "7").mkdir()
    (store / "topics" / "ghost-123").mkdir()
    messages = [breach.message for breach in check(store).breaches]
    assert messages == ["klamm.db knows no such topic", "no partition has this directory"]
    repaired(store)
    assert sorted(name.split("-")[0] for name in os.listdir(store / "orphans")) == ["ghost", "orders"]
    assert read(store) == WHOLE


def test_a_topic_marked_as_deleted_that_is_in_the_catalog_is_told(store: Path) -> None:
    with opened(store) as core:
        core.topic("orders").partition(0).mark_deleted()
        (breach,) = check(core, repair=True).breaches
        assert "delete it again" in breach.message and not breach.repaired


def test_a_damaged_catalog_is_reported_and_made_again_by_repair(store: Path) -> None:
    data = bytearray((store / "klamm.db").read_bytes())
    at = data.index(b"ordersx".replace(b"x", b"{"))
    data[at] ^= 1
    (store / "klamm.db").write_bytes(data)
    report = check(store)
    assert not report.ok and "klamm.db" in str(report.breaches[0])
    assert check(store, repair=True).topics == 1
    assert check(store).ok and read(store) == WHOLE


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        check(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_store_open_for_reading_only_cannot_be_repaired(store: Path) -> None:
    with opened(store, read_only=True) as core:
        assert check(core).breaches == []
        with pytest.raises(ReadOnly):
            check(core, repair=True)


def test_a_log_is_not_mended_while_another_process_has_the_store_open(store: Path) -> None:
    flip(files_of(store) / f"{15:020}.log", 100)
    code = """
import sys
from tests.store.logs import opened
with opened(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""
    arguments = [sys.executable, "-c", code, str(store)]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"open\n"
        report = check(store, repair=True)
        assert not report.ok and "another process has the store open" in report.breaches[0].message
        other.stdin.close()
    repaired(store)


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.soak)])
def test_a_repair_killed_anywhere_takes_no_good_record_away(store: Path, tmp_path: Path, stride: int) -> None:
    path = files_of(store) / f"{15:020}.log"
    position, header = batches_of(path)[1]
    flip(path, position + 80)
    good = WHOLE[: header.base_offset] + WHOLE[header.next_offset :]

    def repair_and_die(copy: Path, step: int) -> None:
        with opened(copy) as core:
            killed_at(step, lambda: check(core, repair=True))()

    step, killed = 1, True
    while killed:
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(store, copy)
        killed = dies(partial(repair_and_die, copy, step))
        check(copy, repair=True)
        assert check(copy).breaches == [], step
        assert read(copy) == good, step
        step += stride
    assert step > 30


def test_a_hole_is_a_batch_without_records(tmp_path: Path) -> None:
    (header,) = walk(empty_batches(5, 9, 2))
    assert (header.base_offset, header.next_offset, header.record_count, header.leader_epoch) == (5, 9, 0, 2)
    wide = walk(empty_batches(0, 2**32, 0))
    assert wide[0].next_offset == wide[1].base_offset and wide[-1].next_offset == 2**32
