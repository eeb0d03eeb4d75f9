"""Mutants of klamm.aio: threads, cancellation, workers in the loop of others; and of what it stands on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

THREADS = "src/klamm/aio/threads.py"
APPENDS = "src/klamm/aio/appends.py"
THREAD_TESTS = "tests/aio/test_aio_threads.py"
CANCEL_TESTS = "tests/aio/test_aio_cancel.py"
HUNG_TESTS = "tests/client/test_hung_workers.py"
OWNS = "            tps = [tp for tp in tps if self.member is not None and self.member.owns(*tp)]\n"
SENDS_ALL_THE_SAME = """\
        if producer._is_full:
            return await self._threads.finish(producer.send, topic, value)
        if False:
            pass"""

MUTANTS = [
    Mutant(
        "calls of klamm.aio run in asyncio's default executor",
        "aio/threads.py: threads of its own",
        (
            (
                THREADS,
                "        return await asyncio.wrap_future(self.submit(_bound(call, *arguments, **named)))\n",
                "        return await asyncio.to_thread(call, *arguments, **named)\n",
            ),
        ),
        ("tests/aio/test_aio_everything.py::test_the_rest_is_there",),
    ),
    Mutant(
        "klamm.aio starts a thread for every call that finds none free",
        "aio/threads.py: at most so many",
        ((THREADS, " or self._count == self._limit:", ":"),),
        (f"{THREAD_TESTS}::test_no_more_calls_run_at_a_time_than_there_may_be_threads",),
    ),
    Mutant(
        "appends that wait take the threads of reads",
        "aio/store.py: reads and writes",
        (
            (
                APPENDS,
                "await self._writes.run(\n            append,\n            topic,\n            value,",
                "await self._reads.run(\n            append,\n            topic,\n            value,",
            ),
        ),
        (f"{THREAD_TESTS}::test_full_producers_and_waiting_appends_hold_up_no_read_and_no_close",),
    ),
    Mutant(
        "a slow loop of klamm.aio takes all that was read at once",
        "aio/consumer.py: a loop looks after its group",
        (
            (
                "src/klamm/aio/consumer.py",
                "            if is_new or time.monotonic() < self._due:\n",
                "            if True:\n",
            ),
        ),
        (
            "tests/aio/test_aio_turns.py::test_a_slow_loop_polls_between_its_records_and_so_stays_a_member",
            "tests/aio/test_aio_turns.py::test_a_slow_loop_that_lost_its_partition_returns_no_more_of_it",
        ),
    ),
    Mutant(
        "closing a producer waits behind its send",
        "aio/threads.py: run_alone",
        (
            (
                "src/klamm/aio/producer.py",
                "        await run_alone(self._sync.close, timeout)\n",
                "        await self._threads.run(self._sync.close, timeout)\n",
            ),
        ),
        (f"{THREAD_TESTS}::test_a_producer_that_is_full_can_be_closed_and_its_send_raises",),
    ),
    Mutant(
        "what a cancelled task was opening stays open",
        "aio/threads.py THR1",
        ((THREADS, "                made.add_done_callback(_close_made)\n", "                pass\n"),),
        (f"{CANCEL_TESTS}::test_what_a_cancelled_task_was_opening_is_closed",),
    ),
    Mutant(
        "a call that was to be made in any case is dropped with its task",
        "aio/threads.py THR1",
        ((THREADS, "            return await asyncio.shield(future)\n", "            return await future\n"),),
        (f"{THREAD_TESTS}::test_a_cancelled_call_does_not_begin_or_comes_to_its_end",),
    ),
    Mutant(
        "a consumer reads on while a commit that was given up is under way",
        "aio/consumer.py ACN1",
        (
            (
                "src/klamm/aio/consumer.py",
                "        await self._committing.ended()\n        self._current = iter(())\n        return await",
                "        self._current = iter(())\n        return await",
            ),
        ),
        (f"{CANCEL_TESTS}::test_a_commit_that_was_given_up_ends_before_the_next_record_is_read",),
    ),
    Mutant(
        "a send of klamm.aio that was given up is sent all the same",
        "aio/producer.py",
        (
            (
                "src/klamm/aio/producer.py",
                "        while producer._is_full and await self._threads.run(producer._await_space):\n            pass",
                SENDS_ALL_THE_SAME,
            ),
        ),
        (f"{CANCEL_TESTS}::test_a_send_that_was_given_up_has_sent_nothing",),
    ),
    Mutant(
        "items before an error of an iterator are lost",
        "aio/pieces.py",
        (
            (
                "src/klamm/aio/pieces.py",
                "        while not self._items:\n",
                "        while not self._items or self._error:\n",
            ),
        ),
        ("tests/aio/test_aio_everything.py::test_pieces_give_what_came_before_an_error_and_then_the_error",),
    ),
    Mutant(
        "a loop that ends makes dead letters of what it was handling",
        "client/work/async_workers.py: a loop of others",
        (
            (
                "src/klamm/client/work/async_workers.py",
                "            if self._is_guest and this is not None and this.cancelling():\n",
                "            if False:\n",
            ),
        ),
        ("tests/aio/test_aio_run.py::test_a_handler_that_others_cancel_ends_the_run_and_is_not_done",),
    ),
    Mutant(
        "a run of klamm.aio that is cancelled goes on",
        "aio/consumer.py: run",
        (("src/klamm/client/work/workers.py", " or self._urgency() > 0\n", "\n"),),
        ("tests/aio/test_aio_run.py::test_a_cancelled_run_lets_handlers_end_and_commits_what_is_done",),
    ),
    Mutant(
        "partitions that were lost meanwhile are told as revoked, too",
        "guide/consuming.md: on_lost",
        (
            (
                "src/klamm/client/groups/group_session.py",
                OWNS,
                "",
            ),
        ),
        (f"{HUNG_TESTS}::test_partitions_that_are_lost_while_a_run_gives_them_back_are_told_once_as_lost",),
    ),
    Mutant(
        "a list of the topics reads the catalog twice",
        "store/catalog.py: topics",
        (("src/klamm/store/catalog.py", ") != self._listed[0]:\n", ") != None:\n"),),
        ("tests/test_handles.py::test_a_list_of_the_topics_reads_the_catalog_once",),
    ),
]
