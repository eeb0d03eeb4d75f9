"""Mutants of the Kafka server: group coordinator, fetch, offsets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COORDINATOR = "src/klamm/kafka/group_coordinator.py"
GROUP_STATE = "src/klamm/kafka/group_state.py"
FETCH = "src/klamm/kafka/apis/fetch.py"
GROUP_STORE = "src/klamm/kafka/group_store.py"
GROUP_OFFSETS = "src/klamm/kafka/apis/group_offsets.py"
COORDINATOR_TESTS = "tests/kafka/test_group_coordinator.py"
OFFSET_TESTS = "tests/kafka/test_group_offset_apis.py"
TRANSACTION_TESTS = "tests/kafka/test_transaction_apis.py"
FETCH_TESTS = "tests/kafka/test_fetch.py"
BOUNDS_TESTS = "tests/kafka/test_bounds.py"
ADMISSION = "src/klamm/kafka/admission.py"
SESSION = "src/klamm/kafka/session.py"
LARGE = "src/klamm/kafka/large_requests.py"
LARGE_TESTS = "tests/kafka/test_large_requests.py"
HOLDS_TESTS = (
    "tests/kafka/test_loop_holds.py::test_a_request_that_names_hundreds_of_things_has_the_loop_for_a_turn_at_a_time"
)
CONNECTION_TESTS = "tests/kafka/test_connection.py"
LOOP_TESTS = "tests/kafka/test_loop.py"
ILLEGAL = "            return ErrorCode.ILLEGAL_GENERATION\n"

LOOK = "            if turn.is_over:\n                await turn.next()\n"
PENDING = "        pending = self._broker.transaction_coordinator.pending_offsets({name for name, _ in wanted})\n"

MUTANTS = [
    Mutant(
        "requests that name hundreds of things are handled at once",
        "kafka/large_requests.py LRQ1",
        ((SESSION, "if len(frame) > LARGE_FRAME and", "if False and"),),
        (f"{LARGE_TESTS}::test_requests_that_name_or_list_many_partitions_take_turns",),
    ),
    Mutant(
        "requests whose responses list hundreds of partitions are handled at once",
        "kafka/large_requests.py LRQ1",
        ((SESSION, "return row.cost is not None and", "return False and row.cost is not None and"),),
        (f"{LARGE_TESTS}::test_requests_that_name_or_list_many_partitions_take_turns",),
    ),
    Mutant(
        "all requests that take long are handled in one round of the loop",
        "kafka/large_requests.py LRQ1",
        ((LARGE, "                self._loop.call_soon(self._run_next)\n", "                self._run_next()\n"),),
        (f"{LARGE_TESTS}::test_in_a_round_of_the_loop_one_is_handled_and_others_go_first",),
    ),
    Mutant(
        "a request that fails ends the queue of those that take long",
        "kafka/large_requests.py LRQ2",
        (
            (
                LARGE,
                "        try:\n            has_woken = self._waiting[0]()\n        finally:\n",
                "        if self._waiting[0]() is None:\n",
            ),
        ),
        (f"{LARGE_TESTS}::test_one_that_fails_is_followed_by_the_next",),
    ),
    Mutant(
        "a response to thousands of things is encoded at once",
        "kafka/large_requests.py LRQ1",
        ((SESSION, "        if call.is_large and response is not None:\n", "        if False:\n"),),
        (f"{LARGE_TESTS}::test_what_is_told_without_number_is_made_and_encoded_in_turns",),
    ),
    Mutant(
        "two requests go on in one round of the loop, if they are tasks",
        "kafka/large_requests.py LRQ1",
        ((LARGE, "            if self._waiting and has_woken:\n", "            if False:\n"),),
        (f"{LARGE_TESTS}::test_one_that_goes_on_later_has_a_round_of_its_own",),
    ),
    Mutant(
        "offsets of a request are looked at all at once",
        "kafka/large_requests.py LRQ4",
        (
            (
                "src/klamm/kafka/apis/group_offsets.py",
                f"{LOOK}            number = requested.partition_index\n",
                "            number = requested.partition_index\n",
            ),
        ),
        (f"{HOLDS_TESTS}[OffsetCommit of many partitions]",),
    ),
    Mutant(
        "a request that changes something is given up with its client",
        "kafka/large_requests.py LRQ4",
        ((LARGE, "        if self._call.is_gone and not self._to_the_end:\n", "        if self._call.is_gone:\n"),),
        (f"{LARGE_TESTS}::test_one_whose_client_is_gone_goes_on_no_more",),
    ),
    Mutant(
        "a response is made however large it is",
        "guide/serving.md: socket.response.max.bytes",
        (("src/klamm/kafka/call.py", "        if self._expected > limit:\n", "        if False:\n"),),
        (f"{LARGE_TESTS}::test_a_response_that_is_too_large_is_given_up_before_it_is_made",),
    ),
    Mutant(
        "a request that brings no records is as large as it likes",
        "guide/serving.md: control.request.max.bytes",
        (("src/klamm/kafka/frame_reader.py", "if size > listener.max_control_request:", "if False:"),),
        (f"{LARGE_TESTS}::test_a_request_without_records_is_read_up_to_its_limit",),
    ),
    Mutant(
        "a request names as much as it likes",
        "guide/serving.md: request.max.elements",
        ((SESSION, "frame, broker.settings.request_max_elements\n", "frame\n"),),
        (f"{LARGE_TESTS}::test_a_request_has_so_many_elements",),
    ),
    Mutant(
        "groups are deleted and read all at once",
        "kafka/large_requests.py LRQ3",
        (
            (
                LARGE,
                "range(0, len(items), PIECE):\n        yield items[start : start + PIECE]",
                "range(1):\n        yield items[start:]",
            ),
        ),
        (
            f"{LARGE_TESTS}::test_many_groups_are_deleted_in_pieces_and_commits_of_others_come_in_between",
            f"{LARGE_TESTS}::test_many_groups_are_read_in_pieces",
        ),
    ),
    Mutant(
        "each partition that does not exist takes a thread",
        "test_large_requests.py",
        (
            (
                "src/klamm/kafka/apis/list_offsets.py",
                "if found is None or not 0 <= requested.partition < found.count:",
                "if found is None:",
            ),
        ),
        (f"{LARGE_TESTS}::test_partitions_that_do_not_exist_take_no_thread",),
    ),
    Mutant(
        "the door of a group that nobody has joined stays held",
        "kafka/group_store.py: groups without members here may have members at the other door",
        (
            (
                "src/klamm/kafka/group_store.py",
                "        for group in groups.held_doors():\n",
                "        for group in list(self._here.values()):\n",
            ),
        ),
        ("tests/kafka/test_group_apis.py::test_a_client_that_goes_while_the_door_is_claimed_is_no_member",),
    ),
    Mutant(
        "the max_timestamp of a client's batch is believed",
        "a false header deletes nothing and keeps nothing",
        (("src/klamm/kafka/apis/produce.py", "    if max_timestamp != header.max_timestamp:", "    if False:"),),
        (
            (
                "tests/kafka/test_timestamps.py::"
                "test_a_false_max_timestamp_neither_deletes_acknowledged_records_nor_hides_them_nor_keeps_them"
            ),
        ),
    ),
    Mutant(
        "a partition's executor compresses, not a codec thread",
        "internals/server.md: threads are kept apart by what must not starve what",
        (
            (
                "src/klamm/kafka/apis/produce.py",
                "(header.size > _QUICK_BYTES or (rules.codec is not None and rules.codec[0] != header.codec))",
                "header.size > _QUICK_BYTES",
            ),
        ),
        ("tests/kafka/test_compression.py::test_it_is_done_by_a_thread_for_codecs",),
    ),
    Mutant(
        "what is decompressed for another codec is not bounded",
        "decompression.max.bytes",
        (("src/klamm/kafka/apis/produce.py", ", max_decoded=rules.max_held)", ")"),),
        ("tests/kafka/test_compression.py::test_what_is_in_memory_meanwhile_is_bounded",),
    ),
    Mutant(
        "a fetch waits at the end of a segment",
        "as in Kafka, a fetch does not wait while the next segment has more",
        ((FETCH, ">= self.min_bytes or self.has_more\n", ">= self.min_bytes\n"),),
        (f"{FETCH_TESTS}::test_a_fetch_does_not_wait_at_the_end_of_a_segment_when_the_next_one_has_more",),
    ),
    Mutant(
        "a heartbeat of any generation is taken",
        "kafka/group_coordinator.py GCO4",
        (
            (
                COORDINATOR,
                f"        if generation != group.generation:\n{ILLEGAL}        self._heard_of",
                f"        if False:\n{ILLEGAL}        self._heard_of",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_heartbeat_is_refused_unless_its_member_and_generation_are_current",),
    ),
    Mutant(
        "offsets are committed in any generation",
        "kafka/group_coordinator.py GCO4",
        (
            (
                COORDINATOR,
                f"        if generation != group.generation:\n{ILLEGAL}        if transactional:",
                f"        if False:\n{ILLEGAL}        if transactional:",
            ),
        ),
        (f"{OFFSET_TESTS}::test_who_may_not_commit_stores_nothing",),
    ),
    Mutant(
        "a SyncGroup of any generation is taken",
        "kafka/group_coordinator.py GCO4",
        ((GROUP_STATE, "        if request.generation != self.generation:\n", "        if False:\n"),),
        (f"{COORDINATOR_TESTS}::test_a_sync_that_does_not_fit_is_refused",),
    ),
    Mutant(
        "a member that is not heard of stays",
        "kafka/group_coordinator.py GCO5",
        (
            (
                COORDINATOR,
                "            self._timers.arm(member.session, now_ms + member.session_timeout_ms)\n",
                "            pass\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_member_that_is_not_heard_of_makes_the_others_join_again",),
    ),
    Mutant(
        "any session timeout is taken",
        "guide/serving.md: group.min.session.timeout.ms, group.max.session.timeout.ms",
        (
            (
                COORDINATOR,
                "        if not error and not self.config.allows_session(request.session_timeout_ms):\n",
                "        if False:\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_session_timeout_out_of_range_is_refused",),
    ),
    Mutant(
        "a group takes more members than group.max.size",
        "kafka/group_coordinator.py GCO6",
        (
            (
                GROUP_STATE,
                "        return member is not None or len(self.members) < max_size\n",
                "        return True\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_full_group_lets_nobody_in_but_its_members",),
    ),
    Mutant(
        "a fetch does not tell that the client's epoch ended earlier",
        "internals/recovery.md: epochs",
        (
            (
                FETCH,
                "if is_past and (end := partition.end_of_epoch(requested.last_epoch)) < requested.offset:",
                "if False:",
            ),
        ),
        (f"{FETCH_TESTS}::test_a_fetch_with_another_leader_epoch_is_refused_or_told_where_it_diverges",),
    ),
    Mutant(
        "partitions of a fetch do not share its max_bytes",
        "kafka/apis/fetch.py: max_bytes of a request",
        ((FETCH, "                left -= size\n", ""),),
        (f"{FETCH_TESTS}::test_partitions_share_what_may_be_sent",),
    ),
    Mutant(
        "a fetch ignores max_bytes of a partition",
        "kafka/apis/fetch.py: max_bytes of a partition",
        ((FETCH, "size = min(left, requested.max_bytes)", "size = left"),),
        (f"{FETCH_TESTS}::test_the_first_batch_however_large_and_then_no_more_than_asked_for",),
    ),
    Mutant(
        "an offset that a transaction is about to move counts as stable",
        "kafka/apis/group_offsets.py: require_stable",
        (
            (
                GROUP_OFFSETS,
                "unstable = pending if request.require_stable else _NOTHING",
                "unstable = _NOTHING",
            ),
        ),
        (f"{OFFSET_TESTS}::test_an_offset_that_a_transaction_is_about_to_move_is_not_told_to_who_wants_it_stable",),
    ),
    Mutant(
        "offsets that wait for a transaction are looked for before their commit is written",
        "kafka/group_store.py GST2",
        (
            (
                GROUP_STORE,
                "            committed, pending = await run(self._offsets, some)\n",
                PENDING.replace("        ", "            ", 1).replace("in wanted", "in some")
                + "            committed, _ = await run(self._offsets, some)\n",
            ),
        ),
        (f"{TRANSACTION_TESTS}::test_offsets_that_a_checked_commit_is_about_to_make_pending_are_not_stable",),
    ),
    Mutant(
        "offsets that wait for a transaction are looked for after the store is read",
        "kafka/group_store.py GST2",
        (
            (
                GROUP_STORE,
                PENDING + "        return GroupOffsets(self.groups.offsets(wanted), pending)\n",
                "        found = self.groups.offsets(wanted)\n"
                + PENDING
                + "        return GroupOffsets(found, pending)\n",
            ),
        ),
        (f"{TRANSACTION_TESTS}::test_a_transaction_that_ends_while_offsets_are_read_does_not_hide",),
    ),
    Mutant(
        "partitions that have to be opened first are added to their transaction one by one",
        "kafka/apis/produce.py: one such write at a time",
        (
            (
                "src/klamm/kafka/apis/produce.py",
                "        return await asyncio.shield(self.registrations[identity])\n",
                """        broker, name = self.broker, self.call.request.transactional_id
        return await broker.transaction_coordinator.register_produce(broker, *identity, name, [place])
""",
            ),
        ),
        (f"{TRANSACTION_TESTS}::test_the_partitions_of_a_produce_request_are_added_to_their_transaction_together",),
    ),
    Mutant(
        "a request may name a thing as often as it likes",
        "guide/serving.md: what a request names several times it gets once",
        (("src/klamm/kafka/admission.py", "        if row.merge is not None:\n", "        if False:\n"),),
        (f"{BOUNDS_TESTS}::test_groups_and_producers_are_described_once",),
    ),
    Mutant(
        "a second batch for a partition is appended, too",
        "kafka/apis/produce.py: a partition is in a request once",
        (("src/klamm/kafka/apis/produce.py", "                if key in seen:\n", "                if False:\n"),),
        (f"{BOUNDS_TESTS}::test_a_partition_that_is_produced_to_twice_is_refused_the_second_time",),
    ),
    Mutant(
        "the CRC of a batch is computed before its size is looked at",
        "kafka/apis/produce.py: size before CRC",
        (("src/klamm/kafka/apis/produce.py", "        if header.size > rules.max_bytes:", "        if False:"),),
        (f"{BOUNDS_TESTS}::test_a_batch_that_is_too_large_is_refused_for_that_though_it_is_corrupt",),
    ),
    Mutant(
        "members of a group may say as much as they like",
        "kafka/group_coordinator.py GCO6",
        ((GROUP_STATE, " + request.size > config.max_bytes:\n", " + request.size < 0:\n"),),
        (f"{BOUNDS_TESTS}::test_what_the_members_of_a_group_say_is_bounded",),
    ),
    Mutant(
        "responses of any size are sent",
        "guide/serving.md: socket.response.max.bytes",
        (("src/klamm/kafka/response_writer.py", "        if size > max_bytes:\n", "        if False:\n"),),
        (f"{BOUNDS_TESTS}::test_a_response_that_is_too_large_is_not_sent",),
    ),
    Mutant(
        "responses that are not read are held without a bound",
        "guide/serving.md: queued.max.response.bytes, max.open.ranges",
        (("src/klamm/kafka/unread.py", "        while self.used > self._limit:\n", "        while False:\n"),),
        (f"{BOUNDS_TESTS}::test_what_is_held_beyond_the_limit_closes_the_oldest_holders",),
    ),
    Mutant(
        "decompression takes the threads of the catalog",
        "internals/server.md: threads are kept apart by what must not starve what",
        (
            (
                "src/klamm/kafka/pools.py",
                "run_in_executor(self._codec, function, *args)",
                "run_in_executor(self._catalog, function, *args)",
            ),
        ),
        (f"{LOOP_TESTS}::test_decompression_and_cold_reads_do_not_delay_the_catalog",),
    ),
    Mutant(
        "every request waits for the catalog",
        "internals/server.md: requests that name no new topic do not",
        (
            (
                "src/klamm/kafka/admission.py",
                "        topics.refresh_soon()\n        return False\n",
                "        return True\n",
            ),
        ),
        (f"{LOOP_TESTS}::test_what_names_no_new_topic_does_not_wait_for_the_catalog",),
    ),
    Mutant(
        "the loop looks for records on the disk",
        "internals/server.md: the loop never waits for a disk",
        ((FETCH, "find = ranges.find if may_block else ranges.find_now", "find = ranges.find"),),
        (f"{LOOP_TESTS}::test_seeks_and_clients_that_catch_up_read_no_file_on_the_loop",),
    ),
    Mutant(
        "a delayed fetch forgets what came while a thread looked",
        "kafka/purgatory.py PUR1",
        (("src/klamm/kafka/purgatory.py", "            elif again:\n", "            elif False:\n"),),
        ("tests/kafka/test_purgatory.py::test_what_comes_while_a_thread_looks_is_not_missed",),
    ),
    Mutant(
        "the loop sends from files that are not in memory",
        "internals/server.md: the loop never waits for a disk",
        (
            (
                "src/klamm/kafka/response_writer.py",
                "        if is_cached(part.file.fd, size, part.position):\n",
                "        if True:\n",
            ),
        ),
        (f"{LOOP_TESTS}::test_a_thread_reads_what_the_kernel_does_not_have_before_it_is_sent",),
    ),
    Mutant(
        "a batch is decompressed as a whole",
        "guide/serving.md: decompression.max.bytes",
        (
            (
                "src/klamm/kafka/apis/produce.py",
                "RecordScan(records, max_held=max_held).result",
                "scan_records(records)",
            ),
        ),
        (f"{BOUNDS_TESTS}::test_a_batch_is_not_decompressed_as_a_whole",),
    ),
    Mutant(
        "a block of snappy is decompressed however large it is",
        "batch/codecs.py CDC2",
        (("src/klamm/batch/codecs.py", "(size := _snappy_size(block)) > max_held:", "(size := 0) > max_held:"),),
        (
            f"{BOUNDS_TESTS}::test_a_batch_of_which_too_much_is_needed_at_a_time_is_refused",
            "tests/batch/test_scan.py",
        ),
    ),
    Mutant(
        "a window of zstd is filled however large it is",
        "batch/codecs.py CDC2",
        (("src/klamm/batch/codecs.py", "if size > max_held < frame.window_size:", "if False:"),),
        ("tests/batch/test_scan.py",),
    ),
    Mutant(
        "a batch is decompressed again, on the loop, for its keys",
        "log/partition.py: append_now does no slow work",
        (("src/klamm/log/batch_rules.py", "if self.reads_records and not is_checked:", "if self.reads_records:"),),
        (f"{LOOP_TESTS}::test_the_records_of_a_batch_are_read_once",),
    ),
    Mutant(
        "a fetch is cut by what the client asks for alone",
        "guide/serving.md: fetch.max.bytes",
        ((FETCH, "min(request.max_bytes, broker.settings.fetch_max_bytes)", "request.max_bytes"),),
        (f"{BOUNDS_TESTS}::test_a_fetch_response_has_as_many_bytes_as_the_server_allows",),
    ),
    Mutant(
        "a fetch that is full waits for more",
        "as in Kafka, bytes that there are count, not those that fit",
        ((FETCH, "max(found.size, max_bytes) if is_cut else found.size", "found.size"),),
        (f"{BOUNDS_TESTS}::test_a_fetch_response_has_as_many_bytes_as_the_server_allows",),
    ),
    Mutant(
        "the transport has a copy of a response that is not read",
        "kafka/response_writer.py: a slow reader holds the response once",
        (("src/klamm/kafka/response_writer.py", "_PIECE = 16 * 1024", "_PIECE = 16 << 20"),),
        (f"{BOUNDS_TESTS}::test_a_response_that_is_not_read_is_in_memory_once",),
    ),
    Mutant(
        "all groups together may hold as much as they like",
        "kafka/group_coordinator.py GCO6: groups.max.bytes",
        (("src/klamm/kafka/group_memory.py", "self.used + size <= limit", "True"),),
        (f"{BOUNDS_TESTS}::test_what_all_groups_hold_is_bounded",),
    ),
    Mutant(
        "what a member was assigned counts on when it has left",
        "kafka/group_coordinator.py GCO6: groups.max.bytes",
        (
            (
                GROUP_STATE,
                "        self._memory.used -= len(member.assignment)\n        self.awaiting_sync",
                "        self.awaiting_sync",
            ),
        ),
        (f"{BOUNDS_TESTS}::test_what_all_groups_hold_is_bounded", "tests/kafka/test_group_coordinator_model.py"),
    ),
    Mutant(
        "ids that were given out do not count",
        "kafka/group_coordinator.py GCO6: groups.max.bytes",
        ((GROUP_STATE, "        self._memory.used += _pending_bytes(member_id)\n", ""),),
        (f"{BOUNDS_TESTS}::test_ids_of_members_that_never_join_count_too",),
    ),
    Mutant(
        "consumers see records that are not on disk, whatever fetch.flushed.only says",
        "guide/serving.md: fetch.flushed.only",
        (
            (
                "src/klamm/kafka/broker.py",
                "if self.settings.fetch_flushed_only and ends.flushed < ends.end:",
                "if False:",
            ),
        ),
        (f"{LOOP_TESTS}::test_consumers_may_be_kept_from_records_that_are_not_on_disk",),
    ),
    Mutant(
        "a fetch does not have records synced that it waits for",
        "guide/serving.md: fetch.flushed.only",
        (("src/klamm/kafka/broker.py", "            self.purgatory.wake_soon(partition)\n", "            pass\n"),),
        (f"{LOOP_TESTS}::test_consumers_may_be_kept_from_records_that_are_not_on_disk",),
    ),
    Mutant(
        "a handler goes on to wait when its client is gone",
        "kafka/call.py: a reply is cancelled when the client disconnects",
        (
            (
                "src/klamm/kafka/session.py",
                "            self._waits.cancel()\n\n    def disconnect",
                "            pass\n\n    def disconnect",
            ),
        ),
        ("tests/kafka/test_group_apis.py::test_nothing_is_left_of_a_join_whose_client_is_gone",),
    ),
    Mutant(
        "the loop decodes a request however many elements it has",
        "kafka/admission.py: a thread decodes a request that takes long",
        ((ADMISSION, "decode(header, row, frame, LOOP_ELEMENTS)", "decode(header, row, frame)"),),
        (f"{CONNECTION_TESTS}::test_a_request_of_many_elements_is_decoded_by_a_thread",),
    ),
]
