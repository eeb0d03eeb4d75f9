"""Mutants of Fetch: sessions, what a fetch that waits looks at, and where ranges are cut."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FETCH = "src/klamm/kafka/apis/fetch.py"
LOOKUP = "src/klamm/kafka/apis/fetch_lookup.py"
SESSIONS = "src/klamm/kafka/fetch_sessions.py"
PURGATORY = "src/klamm/kafka/purgatory.py"
HOLDS_TESTS = (
    "tests/kafka/test_loop_holds.py::test_a_request_that_names_hundreds_of_things_has_the_loop_for_a_turn_at_a_time"
)
NATIVE_FETCH = "src/klamm/kafka/_fetch.pyx"
NATIVE_TESTS = "tests/kafka/test_ordinary_fetch.py"
WAYS_TESTS = "tests/kafka/test_fetch_ways.py"
TESTS = "tests/kafka/test_fetch_sessions.py"
RANGES = "src/klamm/log/ranges.py"
RANGES_TESTS = "tests/log/test_ranges.py"
CUT = "src/klamm/log/_cut.pxi"
CUT_TESTS = "tests/log/test_cut.py"
MODEL = f"{TESTS}::test_a_client_with_a_session_knows_what_one_without_is_told"

MUTANTS = [
    Mutant(
        "the loop looks into as many partitions as a fetch names",
        "kafka/apis/fetch.py: of hundreds of partitions a thread makes the response",
        (
            (
                "src/klamm/kafka/apis/fetch.py",
                "> _LOOP_PARTITIONS:\n            raise WouldBlock",
                "> _LOOP_PARTITIONS:\n            pass",
            ),
        ),
        ("tests/kafka/test_large_requests.py::test_a_thread_makes_the_response_to_a_fetch_of_many_partitions",),
    ),
    Mutant(
        "a range ends at a commit that was read before its segment was replaced",
        "log/ranges.py: positions hold for one version of the segments",
        (
            (
                RANGES,
                "if file_position.base == now.active_base and partition.log.segments_version != version:",
                "if False:",
            ),
        ),
        (f"{RANGES_TESTS}::test_a_segment_compacted_after_the_commit_was_read_is_not_cut_at_that_commit",),
    ),
    Mutant(
        "a fetch session does not look at partitions that have moved",
        "kafka/fetch_sessions.py FES4",
        ((SESSIONS, "self.pending.update([self._watched[place] for place in places])", "pass"),),
        (MODEL,),
    ),
    Mutant(
        "a partition whose records were not all sent is not looked at again",
        "kafka/fetch_sessions.py FES4",
        ((FETCH, "            if requested.rests and (", "            if (True or requested.rests) and ("),),
        (f"{TESTS}::test_partitions_take_turns",),
    ),
    Mutant(
        "an error is told once",
        "kafka/fetch_sessions.py FES4",
        ((FETCH, "            if known is None or known != requested.sent", "            if known != requested.sent"),),
        (f"{TESTS}::test_an_error_is_told_in_each_response_and_then_that_it_is_over",),
    ),
    Mutant(
        "that offsets have moved without records is not told",
        "kafka/fetch_sessions.py FES4",
        ((FETCH, "(is_sent or self.is_full or requested.sent == _known(self.responses[requested]))", "True"),),
        (f"{TESTS}::test_records_of_open_transactions_are_no_reason_to_wake_a_client_that_reads_committed_ones",),
    ),
    Mutant(
        "another isolation level changes nothing in a session",
        "kafka/fetch_sessions.py FES4",
        ((SESSIONS, "            self.pending.update(self.partitions.values())\n", "            pass\n"),),
        (f"{TESTS}::test_another_isolation_level_is_looked_at_again",),
    ),
    Mutant(
        "a session goes on with a topic that was deleted",
        "kafka/fetch_sessions.py",
        ((LOOKUP, "    if session.catalog_version != broker.topics.version:", "    if session.catalog_version < 0:"),),
        (f"{TESTS}::test_a_topic_that_is_deleted_and_made_again_is_another_one",),
    ),
    Mutant(
        "any connection may use any fetch session",
        "kafka/fetch_sessions.py FES1",
        (
            (
                SESSIONS,
                "        session = self._by_owner.get(owner)\n        return session if",
                (
                    "        session = next((s for s in self._by_owner.values() if s.id == session_id), None)\n"
                    "        return session if"
                ),
            ),
        ),
        (f"{TESTS}::test_a_session_is_its_connections_own",),
    ),
    Mutant(
        "a session stays when its connection is closed",
        "kafka/fetch_sessions.py FES1",
        (
            (
                "src/klamm/kafka/listener.py",
                "        self.broker.fetch_sessions.close(connection.session)\n",
                "",
            ),
        ),
        (f"{TESTS}::test_nothing_is_left_of_a_session_whose_connection_is_closed",),
    ),
    Mutant(
        "partitions of fetch sessions are not bounded",
        "kafka/fetch_sessions.py FES2",
        ((SESSIONS, " or self.partitions + size > self._max_partitions:", ":"),),
        (f"{TESTS}::test_partitions_of_all_sessions_are_bounded",),
    ),
    Mutant(
        "a session gives way to any other after two minutes",
        "kafka/fetch_sessions.py FES3",
        ((SESSIONS, " and other.size < len(session.partitions)\n", "\n"),),
        (f"{TESTS}::test_the_longest_unused_gives_way_and_then_a_smaller_one_that_is_old",),
    ),
    Mutant(
        "a session that has given way is used",
        "kafka/fetch_sessions.py FES3",
        ((SESSIONS, "        if self._by_owner.get(owner) is not session:\n            return False\n", ""),),
        (f"{TESTS}::test_a_session_that_gives_way_while_its_request_takes_turns_is_over",),
    ),
    Mutant(
        "partitions of a fetch are looked up at once",
        "kafka/large_requests.py LRQ4",
        ((FETCH, "    await turn.run(look_up(broker, session, call))\n", "    [*look_up(broker, session, call)]\n"),),
        (f"{HOLDS_TESTS}[Fetch of many partitions]",),
    ),
    Mutant(
        "a fetch is put down at all its partitions at once",
        "kafka/large_requests.py LRQ4",
        ((FETCH, "    if len(subscription.missing) > _LOOP_PARTITIONS:\n", "    if False:\n"),),
        (f"{HOLDS_TESTS}[Fetch that waits]",),
    ),
    Mutant(
        "a fetch whose client is gone stays where it was put down",
        "kafka/apis/fetch.py: nothing is left of a fetch whose client is gone",
        ((FETCH, "            purgatory.end(subscription)\n            raise\n", "            raise\n"),),
        ("tests/kafka/test_purgatory.py::test_nothing_is_left_of_a_fetch_whose_client_goes_while_it_takes_turns",),
    ),
    Mutant(
        "a session is not put back where it was taken off",
        "kafka/purgatory.py PUR4",
        ((PURGATORY, "            idle.missing[partition] = None\n", ""),),
        (f"{TESTS}::test_a_session_that_waits_is_woken_by_each_of_its_partitions",),
    ),
    Mutant(
        "a session is put down at all its partitions each time",
        "kafka/purgatory.py PUR4",
        ((PURGATORY, "        if not delayed.subscription.is_standing:\n", "        if True:\n"),),
        (f"{TESTS}::test_a_session_that_waits_costs_what_moved_and_not_what_it_has",),
    ),
    Mutant(
        "a fetch does not look again for what came before its partitions were watched",
        "kafka/purgatory.py PUR1",
        ((PURGATORY, "        if not (is_watched and was_tried):\n", "        if False:\n"),),
        ("tests/kafka/test_purgatory.py::test_what_comes_just_before_it_is_watched_is_not_missed",),
    ),
    Mutant(
        "a client without a session gets the partitions of its last request",
        "kafka/fetch_sessions.py FES5",
        ((SESSIONS, "kept is not None and kept[0] == names and", "kept is not None and"),),
        (f"{TESTS}::test_what_is_kept_for_clients_without_a_session_is_bounded_and_theirs",),
    ),
    Mutant(
        "any number of clients without a session have something kept for them",
        "kafka/fetch_sessions.py FES5",
        ((SESSIONS, "        if len(self._kept) >= self._max_sessions:\n", "        if False:\n"),),
        (f"{TESTS}::test_what_is_kept_for_clients_without_a_session_is_bounded_and_theirs",),
    ),
    Mutant(
        "an ordinary request ends a session that it names",
        "kafka/apis/fetch.py: what is not ordinary is left to the handler",
        ((FETCH, "    elif epoch != _LAST or request.session_id:\n", "    elif False:\n"),),
        (f"{TESTS}::test_the_rules_of_ids_and_epochs",),
    ),
    Mutant(
        "the epoch of a session stays what it was when an ordinary request has used it",
        "kafka/fetch_sessions.py",
        (
            (
                FETCH,
                "    if epoch > 0:\n        session.epoch = next_epoch",
                "    if False:\n        session.epoch = next_epoch",
            ),
        ),
        (f"{WAYS_TESTS}::test_any_session_has_the_same_responses_either_way",),
    ),
    Mutant(
        "a poll of an idle session has the response to an empty one though something came",
        "kafka/apis/fetch.py: a poll becomes a fetch when something moves",
        ((FETCH, "            if not self._session.look():\n", "            if True:\n"),),
        (f"{WAYS_TESTS}::test_polls_of_an_idle_session_have_the_same_responses_either_way",),
    ),
    Mutant(
        "a poll of an idle session may have any epoch",
        "kafka/fetch_sessions.py",
        ((SESSIONS, "            or session.epoch != request.session_epoch\n", ""),),
        (f"{WAYS_TESTS}::test_polls_of_an_idle_session_have_the_same_responses_either_way",),
    ),
    Mutant(
        "a poll of an idle session goes on at the isolation level of the last",
        "kafka/fetch_sessions.py",
        ((SESSIONS, "            or session.isolation_level != request.isolation_level\n", ""),),
        (f"{TESTS}::test_another_isolation_level_is_looked_at_again",),
    ),
    Mutant(
        "what looks like a request inside of another is handled",
        "kafka/frame_reader.py: nothing is before or behind it",
        (("src/klamm/kafka/frame_reader.py", " or self._behind is not None or not 0 <", " or not 0 <"),),
        ("tests/kafka/test_connection.py::test_what_looks_like_a_request_inside_of_another_is_none",),
    ),
    Mutant(
        "a request that arrives in one piece may be as large as the buffer",
        "guide/serving.md: control.request.max.bytes",
        (("src/klamm/kafka/frame_reader.py", "size > listener.max_control_request or size_field", "size_field"),),
        ("tests/kafka/test_large_requests.py::test_a_request_that_arrives_in_one_piece_is_bounded_too",),
    ),
    Mutant(
        "a partition that an ordinary Fetch names twice is fetched twice",
        "kafka/_fetch.pyx FCH1",
        ((NATIVE_FETCH, "at.p == NULL or is_repeated(self.wanted, self.count)", "at.p == NULL"),),
        (f"{NATIVE_TESTS}::test_a_request_that_is_not_ordinary_is_left_to_others",),
    ),
    Mutant(
        "the response to an ordinary Fetch lacks the log start offset",
        "kafka/_fetch.pyx FCH2",
        ((NATIVE_FETCH, "    LOG_START_SINCE = 5\n", "    LOG_START_SINCE = 6\n"),),
        (f"{NATIVE_TESTS}::test_no_version_is_left_to_chance",),
    ),
    Mutant(
        "the table of producers is read beyond the commit",
        "log/_ahead.pxi AHD1",
        (("src/klamm/log/producer_recovery.py", "if batch.next_offset >= end:", "if False:"),),
        ("tests/log/test_ahead.py::test_the_first_producer_of_a_log_with_blocks_ahead_is_remembered",),
    ),
    Mutant(
        "a range is cut where an entry says, though another batch is there",
        "log/index.py I2",
        ((CUT, " and <int64_t>be64(header) == entry.offset:", ":"),),
        (f"{CUT_TESTS}::test_entries_that_are_wrong_are_not_followed",),
    ),
    Mutant(
        "an entry of the index with a wrong checksum is followed",
        "log/index.py I1",
        ((CUT, "entry.crc == index_crc(entry) and 0 <=", "0 <="),),
        (f"{CUT_TESTS}::test_an_entry_for_the_end_counts_only_if_it_is_whole",),
    ),
    Mutant(
        "the loop walks over any number of headers",
        "internals/server.md: seeks",
        ((CUT, "        if cut.headers_left == 0:\n", "        if False:\n"),),
        (f"{CUT_TESTS}::test_a_loop_looks_at_a_bounded_number_of_headers",),
    ),
    Mutant(
        "a range ends behind the limit",
        "log/_cut.pxi",
        ((CUT, "        if next_offset > cut.limit:\n", "        if next_offset - 1 > cut.limit:\n"),),
        (f"{CUT_TESTS}::test_a_range_is_cut_where_a_walk_over_all_headers_ends",),
    ),
    Mutant(
        "a log that is watched anew does not count as moved",
        "kafka/fetch_sessions.py FES4",
        (("src/klamm/log/_watch.pxi", "if self.is_new[i] or now != self.known[i]:", "if now != self.known[i]:"),),
        ("tests/log/test_watch.py::test_watched_logs_come_and_go_and_are_told_when_they_move",),
    ),
]
