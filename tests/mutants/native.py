"""Mutants of the native modules: append, table of producers, head, CRC, sync."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HEAD = "src/klamm/log/_head.pyx"
APPEND = "src/klamm/log/_append.pxi"
PRODUCERS = "src/klamm/log/_producers.pxi"
POWER_CUT = "tests/crash/test_power_cut.py"
DAMAGE = "tests/crash/test_damage.py"
TRANSACTIONS = ("tests/log/test_transactions.py",)
WRITING = ("tests/crash/test_killed_writer.py", "tests/crash/test_random_kills.py", "tests/log")

MUTANTS = [
    Mutant(
        "what is aborted is written down after the marker's commit",
        "log/aborted.py A1",
        (
            (
                APPEND,
                ("        error = note_aborted(w, &now, batch)\n        if error:\n            return error\n"),
                "        pass\n",
            ),
            (
                APPEND,
                "    publish(w.slot, &now)\n    if producer_id",
                (
                    "    publish(w.slot, &now)\n"
                    "    if attributes & KLAMM_CONTROL and batch[MARKER_TYPE_AT + 1] == 0:\n"
                    "        note_aborted(w, &before, batch)\n"
                    "    if producer_id"
                ),
            ),
        ),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker makes everything stable, whatever else is open",
        "a transaction is read whole or not at all",
        ((APPEND, "        now.stable_offset = oldest if oldest >= 0 else end", "        now.stable_offset = end"),),
        TRANSACTIONS,
    ),
    Mutant(
        "an open transaction does not hold the stable offset back",
        "a transaction is read whole or not at all",
        ((APPEND, " and not attributes & KLAMM_TRANSACTIONAL:", ":"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a late marker ends a later transaction",
        "store/transactions.py T3",
        (
            (
                PRODUCERS,
                "    if epoch <= last:\n        return R_ENDED\n",
                "    if epoch <= last:\n        return R_IN_ORDER\n",
            ),
        ),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker of the same epoch is written though nothing is open",
        "store/transactions.py T3",
        (
            (
                PRODUCERS,
                "if epoch == last and entry.first_open_offset >= 0 else R_ENDED",
                "if epoch == last else R_ENDED",
            ),
        ),
        TRANSACTIONS,
    ),
    Mutant(
        "after a marker of the same epoch the sequence begins anew",
        "an idempotent producer's retry is stored once",
        ((PRODUCERS, "            place.last_sequence = last.last_sequence\n", "            pass\n"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker ends an older transaction, whatever became of that",
        "store/transactions.py T3",
        ((PRODUCERS, " if entry.first_open_offset < 0 or epoch == last + 1 else R_OUT_OF_ORDER", ""),),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker does not end the transaction in the table",
        "store/transactions.py T4",
        ((PRODUCERS, "        store_i64(&entry.first_open_offset, -1)\n    elif", "        pass\n    elif"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a dead writer's bytes stay",
        "promise 3",
        (
            (APPEND, "    if w.slot.intent != now.seq:", "    if False:"),
            (APPEND, "        if status.st_size > now.position:", "        if False:"),
        ),
        WRITING,
    ),
    Mutant(
        "intent is stored after the write",
        "promise 3",
        (
            (APPEND, "    store64(&w.slot.intent, now.seq + 1)\n    while done < size:", "    while done < size:"),
            (APPEND, "    before = now\n", "    before = now\n    store64(&w.slot.intent, now.seq + 1)\n"),
            (APPEND, "        if status.st_size > now.position:", "        if False:"),
        ),
        WRITING,
    ),
    Mutant(
        "seq is stored before the commit is filled",
        "promise 1",
        (
            (
                APPEND,
                "    store_commit(&slot.ring[next.seq % RING], next)\n    store64(&slot.seq, next.seq)",
                "    store64(&slot.seq, next.seq)\n    store_commit(&slot.ring[next.seq % RING], next)",
            ),
        ),
        WRITING,
    ),
    Mutant(
        "no append byte",
        "promise 2",
        ((APPEND, "if os_lock(w.lock_fd, w.append_byte, F_WRLCK, 0) == 0:", "if True:"),),
        WRITING,
    ),
    Mutant(
        "a failed write is not cut off",
        "promise 6",
        ((APPEND, "            cut(w, &now)\n", ""),),
        WRITING,
    ),
    Mutant(
        "a short write is taken for a whole one",
        "promise 1",
        ((APPEND, "            done += written\n", "            done = size\n"),),
        WRITING,
    ),
    Mutant(
        "the reader does not look at seq again",
        "promise 1",
        ((APPEND, "if load64(&slot.seq) - seq < RING - 1:", "if True:"),),
        WRITING,
    ),
    Mutant(
        "the reader's bound is too wide, and it checks no seq and CRC",
        "promise 1",
        (
            (APPEND, "if load64(&slot.seq) - seq < RING - 1:", "if load64(&slot.seq) - seq < RING:"),
            (APPEND, "return 0 if out.seq == seq and out.crc == commit_crc(out) else R_DAMAGED_HEAD", "return 0"),
        ),
        WRITING,
    ),
    Mutant(
        "a damaged commit is believed",
        "promise 7",
        ((APPEND, "return 0 if out.seq == seq and out.crc == commit_crc(out) else R_DAMAGED_HEAD", "return 0"),),
        WRITING,
    ),
    Mutant(
        "nobody makes up for a writer that died before the table of producers",
        "promise 3",
        ((PRODUCERS, "    if w.slot.redo_seq == now.seq:", "    if False:"),),
        WRITING,
    ),
    Mutant(
        "producers are remembered before the commit",
        "promise 3",
        (
            (
                APPEND,
                ("    publish(w.slot, &now)\n    if producer_id >= 0:\n        remember(w, batch, base_offset)"),
                (
                    "    if producer_id >= 0:\n"
                    "        remember(w, batch, base_offset)\n"
                    "    publish(w.slot, &now)\n"
                    "    if producer_id >= 0:"
                ),
            ),
        ),
        WRITING,
    ),
    Mutant(
        "an index entry is written before its batch is committed",
        "promise 9",
        (
            (APPEND, "    before = now\n", "    before = now\n    maybe_index(w, &before, base_offset)\n"),
            (APPEND, "    while done < size:", "    maybe_index(w, &now, base_offset + 1)\n    while done < size:"),
        ),
        WRITING,
    ),
    Mutant(
        "the bell is rung before the commit",
        "internals/commit.md: a reader that waits sees what it was woken for",
        (
            (APPEND, "    if result >= 0:\n        klamm_ring(&w.store.bell, w.bell_bit)\n", ""),
            (
                APPEND,
                "    publish(w.slot, &now)\n    if producer_id",
                ("    klamm_ring(&w.store.bell, w.bell_bit)\n    publish(w.slot, &now)\n    if producer_id"),
            ),
        ),
        (
            "tests/disk",
            "tests/log",
            "tests/client",
        ),
    ),
    Mutant(
        "a sync does not reach the disk",
        "promise 5",
        (
            (
                "src/klamm/disk/os.h",
                "    return klamm_step(STEP_SYNC) ? -1 : fdatasync(fd);",
                "    return klamm_step(STEP_SYNC) ? -1 : 0;",
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "the CRC of batches is not checked",
        "promise 7",
        (
            (
                "src/klamm/batch/record.h",
                "        if (batch.crc != klamm_crc32c(",
                "        if (0 && batch.crc != klamm_crc32c(",
            ),
        ),
        (DAMAGE,),
    ),
    Mutant(
        "a damaged clock is believed",
        "promise 7",
        (
            (
                "src/klamm/log/_heads.pxi",
                "        if store.anchor_check != ",
                "        if False and store.anchor_check != ",
            ),
        ),
        (DAMAGE,),
    ),
    Mutant(
        "a reader that follows the active segment looks beyond the commit",
        "promise 1",
        (
            (HEAD, "size = min(<int64_t>max_bytes, now.position - position)", "size = <int64_t>max_bytes"),
            (HEAD, " if got == size else -1\n        else:", " if got > 0 else -1\n        else:"),
            (
                HEAD,
                " if got == size else -1\n        if code != KLAMM_OK",
                " if got > 0 else -1\n        if code != KLAMM_OK",
            ),
        ),
        WRITING,
    ),
]
