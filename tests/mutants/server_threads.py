"""Mutants of what the server's threads do: syncs, transactions side by side, changes of the catalog."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SYNC_QUEUE = "src/klamm/kafka/sync_queue.py"
SYNC_THREAD = "src/klamm/log/_sync_thread.pxi"
GROUP_COMMIT = "src/klamm/store/group_commit.py"
RESOLVER = "src/klamm/store/transaction_resolver.py"
COORDINATOR = "src/klamm/kafka/transaction_coordinator.py"
TOPIC_CHANGES = "src/klamm/store/topic_changes.py"
DIRECTORY = "src/klamm/store/directory.py"
QUEUE_TESTS = "tests/kafka/test_sync_queue.py"
THREAD_TESTS = "tests/log/test_sync_thread.py"
GROUP_TESTS = "tests/store/test_group_commit.py"
COORDINATOR_TESTS = "tests/kafka/transactions/test_transaction_coordinator_threads.py"
TOPIC_TESTS = "tests/store/test_topic_changes.py"

MUTANTS = [
    Mutant(
        "a sync that could not be done counts as done",
        "kafka/sync_queue.py SYQ1",
        ((SYNC_QUEUE, "            if result == 0:\n", "            if True:\n"),),
        (f"{QUEUE_TESTS}::test_those_who_come_while_a_sync_runs_share_the_next",),
    ),
    Mutant(
        "a request that comes while a sync runs is answered with it",
        "kafka/sync_queue.py SYQ1",
        (
            (
                SYNC_QUEUE,
                "        if sync is not None and sync.is_started:\n",
                "        if sync is not None and False:\n",
            ),
        ),
        (f"{QUEUE_TESTS}::test_nobody_is_told_before_it_is_on_disk",),
    ),
    Mutant(
        "who waits for a sync when the server stops is told nothing",
        "kafka/sync_queue.py SYQ3",
        ((SYNC_QUEUE, "                done(_closed())\n\n\n", "                pass\n\n\n"),),
        (f"{QUEUE_TESTS}::test_who_still_waits_when_it_is_closed_is_told_so",),
    ),
    Mutant(
        "a thread tells the loop before it has synced",
        "log/_sync_thread.pxi SYN2",
        (
            (
                SYNC_THREAD,
                "            job.result = try_sync(job.writer, job.end_offset)\n",
                "            job.result = 0\n",
            ),
        ),
        (f"{THREAD_TESTS}::test_what_is_told_to_be_synced_is_on_disk",),
    ),
    Mutant(
        "the loop is told of each sync by itself",
        "log/_sync_thread.pxi SYN4",
        (
            (
                SYNC_THREAD,
                "            tells, self.told = not self.told, 1\n",
                "            tells, self.told = True, 1\n",
            ),
        ),
        (f"{THREAD_TESTS}::test_the_loop_is_told_once_of_all_that_is_done",),
    ),
    Mutant(
        "a batch begins a segment on the event loop",
        "internals/server.md: the loop never waits for a disk",
        (
            (
                "src/klamm/log/_append.pxi",
                "    if quick and needs_files(w, &now, batch, size):\n",
                "    if quick and False:\n",
            ),
        ),
        ("tests/log/test_partition.py::test_an_append_that_may_not_wait_makes_no_files",),
    ),
    Mutant(
        "a write that fails takes its group with it",
        "store/group_commit.py GCM2",
        (
            (
                GROUP_COMMIT,
                "        except KlammError as error:\n            write.error",
                "        except KeyError as error:\n            write.error",
            ),
        ),
        (f"{GROUP_TESTS}::test_one_that_raises_is_undone_and_the_others_are_not",),
    ),
    Mutant(
        "a write that fails is committed with its group",
        "store/group_commit.py GCM2",
        ((GROUP_COMMIT, '            execute("ROLLBACK TO one_of_a_group")\n', ""),),
        (f"{GROUP_TESTS}::test_one_that_raises_is_undone_and_the_others_are_not",),
    ),
    Mutant(
        "a group is as durable as its first write",
        "store/group_commit.py GCM1",
        ((GROUP_COMMIT, "any(write.durable for write in writes)", "writes[0].durable"),),
        (f"{GROUP_TESTS}::test_a_group_is_durable_if_one_of_it_has_to_be",),
    ),
    Mutant(
        "a tick marks what another thread is about to mark",
        "store/transactions.py T3",
        (
            (
                RESOLVER,
                "                found = (has_turn and self._resolve_id(row.producer_id)) or found\n",
                "                found = self._resolve_id(row.producer_id) or found\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_tick_does_not_mark_what_a_thread_is_about_to",),
    ),
    Mutant(
        "what came late is aborted while its producer begins again",
        "store/transactions.py T3",
        (
            (
                RESOLVER,
                "                    if has_turn:\n                        self._abort_late",
                "                    if True:\n                        self._abort_late",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_what_came_late_is_not_aborted_while_its_producer_begins_again",),
    ),
    Mutant(
        "what a thread changes while all rows are read is forgotten",
        "kafka/transaction_coordinator.py D3",
        (
            (
                COORDINATOR,
                "                for producer_id, name in self._changed.items():\n",
                "                for producer_id, name in ():\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_what_changes_while_all_is_read_again_stays_known",),
    ),
    Mutant(
        "a topic that is not what its row says is confirmed",
        "store/topic_changes.py: a reader of changes knows what one that reads all knows",
        ((DIRECTORY, "opened.topic is not topic and opened.topic != topic", "False"),),
        (f"{TOPIC_TESTS}::test_what_another_thread_has_read_since_is_not_confirmed",),
    ),
    Mutant(
        "logs of topics that have not changed wait for their settings",
        "store/topic_changes.py: a reader of changes knows what one that reads all knows",
        ((DIRECTORY, "                        partition.log.confirm(version)\n", "                        pass\n"),),
        (f"{TOPIC_TESTS}::test_logs_of_topics_that_have_not_changed_are_appended_to_at_once",),
    ),
]
