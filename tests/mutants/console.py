"""Mutants of the console: who may look, what is escaped, what a search and a follower see."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GUARD = "src/klamm/console/security.py"
SECURITY = "tests/console/test_security.py"
SERVE = "tests/cli/test_serve_console.py"
HTML = "src/klamm/html.py"

MUTANTS = [
    Mutant(
        "the console serves any host name",
        "console/security.py: SEC1",
        ((GUARD, "        if not self._is_own_host(host):", "        if False:"),),
        (f"{SECURITY}::test_a_request_for_another_host_is_refused",),
    ),
    Mutant(
        "a form of another site is carried out",
        "console/security.py: SEC2",
        ((GUARD, "        if origin is not None and _netloc(origin) != host:", "        if False:"),),
        (f"{SECURITY}::test_a_change_needs_the_console_s_own_origin_and_the_token_of_the_session",),
    ),
    Mutant(
        "a form needs no CSRF token",
        "console/security.py: SEC2",
        (("src/klamm/console/app.py", "    if not hmac.compare_digest(", "    if False and not hmac.compare_digest("),),
        (f"{SECURITY}::test_the_csrf_token_of_another_session_is_refused",),
    ),
    Mutant(
        "a session is not checked",
        "console/security.py: SEC3",
        (
            (GUARD, 'return cookie.startswith("in-") and self.is_valid(cookie)', 'return cookie.startswith("in-")'),
            (GUARD, "        if not self._sessions.is_valid(cookie):\n", "        if False:\n"),
        ),
        (f"{SECURITY}::test_a_session_that_was_made_up_is_not_one",),
    ),
    Mutant(
        "text is markup",
        "html.py: whatever is not Html already is escaped",
        ((HTML, "        return escape(visible(child))", "        return visible(child)"),),
        ("tests/console/test_html.py::test_text_is_never_markup",),
    ),
    Mutant(
        "half of a surrogate pair is shown as it is",
        "html.py: what UTF-8 cannot have is spelled out",
        ((HTML, r"\ud800-\udfff", ""),),
        ("tests/console/test_pages.py::test_no_record_keeps_a_topic_from_being_shown",),
    ),
    Mutant(
        "a form spells out what it sends back",
        "console/pages/produce.py: the form sends back the same bytes",
        ((HTML, "    return Html(escape(text))", "    return Html(escape(visible(text)))"),),
        ("tests/console/test_forms.py::test_a_record_that_is_sent_again_is_the_same",),
    ),
    Mutant(
        "a saved page has its forms and menus",
        "console/pages/frame.py: what can be read of a page",
        (("src/klamm/console/pages/frame.py", "        body = _inert(body)", "        body = body"),),
        ("tests/console/test_pages.py::test_a_saved_view_is_one_file",),
    ),
    Mutant(
        "a query outlives a console that ends",
        "console/child.py: it is killed when the console ends",
        (("src/klamm/console/server.py", "            end_children()\n            super", "            super"),),
        ("tests/console/test_server.py::test_a_query_ends_with_the_console",),
    ),
    Mutant(
        "a console that only reads produces",
        "guide/console.md: the console only reads, unless it is started with --allow-changes",
        (("src/klamm/console/pages/produce.py", "    if not console.options.allow_changes:", "    if False:"),),
        (f"{SECURITY}::test_a_console_that_only_reads_changes_nothing",),
    ),
    Mutant(
        "a reset carries out another plan than the one that was shown",
        "guide/console.md: a plan that is not true any more is not carried out",
        (
            (
                "src/klamm/console/pages/groups.py",
                '    if _fingerprint(plan) != form.one("fingerprint"):',
                "    if False:",
            ),
        ),
        ("tests/console/test_forms.py::test_a_plan_that_is_another_one_by_now_is_not_carried_out",),
    ),
    Mutant(
        "a search skips what did not fit on its page",
        "console/record_search.py: positions continue a search",
        (("src/klamm/console/record_search.py", "        if dropped and is_forward:", "        if False:"),),
        ("tests/console/test_record_search.py::test_pages_together_are_all_records_each_once",),
    ),
    Mutant(
        "a follower that comes back begins at the end",
        "console/tail.py: a browser that comes back misses nothing",
        (("src/klamm/console/tail.py", 'request.headers.get("last-event-id", "")', '""'),),
        ("tests/console/test_server.py::test_a_follower_that_comes_back_gets_what_came_since_and_nothing_twice",),
    ),
    Mutant(
        "a group is behind by the age of any partition",
        "console/sampler.py: lag_ms is the age of the oldest record",
        (("src/klamm/console/sampler.py", "max((lag for lag in lags_ms", "min((lag for lag in lags_ms"),),
        (
            "tests/console/test_sampler.py::test_lag_of_a_group_is_that_of_its_oldest_partition_and_skips_what_was_aborted",
        ),
    ),
    Mutant(
        "a filter finds a record by what is masked",
        "console/mask.py: MSK1",
        (
            (
                "src/klamm/console/record_search.py",
                "filter(keep, records)",
                "map(show or (lambda record: record), filter(keep, batch))",
            ),
        ),
        ("tests/console/test_mask.py::test_no_filter_finds_a_record_by_what_is_masked",),
    ),
    Mutant(
        "a value that is not JSON is shown in spite of a mask",
        "console/mask.py: MSK2",
        (
            (
                "src/klamm/console/mask.py",
                "self._hide_bytes(record.value, _NOT_JSON)",
                "self._hide_bytes(record.value, record.value)",
            ),
        ),
        ("tests/console/test_mask.py::test_a_value_that_is_not_json_is_hidden_whole",),
    ),
    Mutant(
        "a follower sees what is masked",
        "console/mask.py: MSK1",
        (("src/klamm/console/tail.py", "filter(wanted, map(console.mask, batch))", "filter(wanted, batch)"),),
        ("tests/console/test_mask.py::test_a_follower_does_not_see_it",),
    ),
    Mutant(
        "a purge deletes what came since it was shown",
        "guide/console.md: those that were shown, and none that came since",
        (
            (
                "src/klamm/console/pages/purge.py",
                "offset_in(until, log, end=log.ends().end, default=0)",
                "log.ends().end",
            ),
        ),
        ("tests/console/test_pages.py::test_a_purge_shows_what_goes_and_deletes_no_more_than_that",),
    ),
    Mutant(
        "a gap of a history is a line",
        "console/history.py: that is a gap, and drawn as one",
        (("src/klamm/console/history.py", "> GAP * max(before.every_ms, point.every_ms)", "> 10**15"),),
        ("tests/console/test_history.py::test_where_nothing_was_recorded_there_is_a_gap",),
    ),
    Mutant(
        "a query opens files",
        "console/pages/sql.py: DuckDB opens no file",
        (("src/klamm/console/pages/sql.py", "SET enable_external_access=false; ", ""),),
        ("tests/console/test_sql.py::test_a_query_reads_topics_and_nothing_else",),
    ),
    Mutant(
        "recent requests hold the bytes of logins and records",
        "kafka/request_log.py: RQL1",
        (
            (
                "src/klamm/kafka/request_log.py",
                'return f"<{len(value)} bytes>"',
                'return bytes(value).decode("latin-1")',
            ),
        ),
        (f"{SERVE}::test_the_console_shows_recent_requests_without_passwords_and_records",),
    ),
    Mutant(
        "a console outlives its server",
        "cli/console_process.py: it ends however the server does",
        (("src/klamm/cli/console.py", "        if until_eof:", "        if False:"),),
        (f"{SERVE}::test_the_console_ends_when_the_server_is_killed_and_the_server_goes_on_without_it",),
    ),
    Mutant(
        "any password is a user's",
        "console/security.py: SEC3",
        (
            (
                "src/klamm/console/passwords.py",
                "    return credential is not None and fits",
                "    return credential is not None",
            ),
        ),
        (f"{SECURITY}::test_users_of_the_store_log_in_with_their_passwords",),
    ),
    Mutant(
        "letters that came since the dry run go back, too",
        "guide/console.md: those that the dry run saw",
        (
            (
                "src/klamm/console/pages/dead_letters.py",
                'return error in ("", letter.error) and letter.record.offset < ends.get(letter.record.partition, 0)',
                'return error in ("", letter.error)',
            ),
        ),
        ("tests/console/test_dead_letters.py::test_letters_that_came_after_the_dry_run_are_not_put_back",),
    ),
    Mutant(
        "a dry run of dead letters puts them back",
        "client/work/dead_letters.py: dry_run changes nothing",
        (("src/klamm/client/work/dead_letters.py", "    if dry_run:", "    if False:"),),
        ("tests/client/test_dead_letters.py::test_a_dry_run_tells_what_is_in_the_way_and_changes_nothing",),
    ),
    Mutant(
        "a member that reads one partition after the other stands still",
        "console/sampler.py: members that moved in no other partition either",
        (
            (
                "src/klamm/console/sampler.py",
                "    moving = {stall.member for stall in stalls if stall.since_ms > before_ms}",
                "    moving = {stall.partition for stall in stalls if stall.since_ms > before_ms}",
            ),
        ),
        ("tests/console/test_sampler.py::test_a_member_that_reads_one_partition_after_the_other_does_not_stand_still",),
    ),
    Mutant(
        "two processes record the history of groups",
        "console/history.py: one process records at a time",
        (("src/klamm/console/history.py", "            if not self.is_recorder():", "            if False:"),),
        ("tests/console/test_history.py::test_one_process_records_at_a_time_and_another_takes_over",),
    ),
    Mutant(
        "members of Kafka clients' groups are seen by the server alone",
        "guide/console.md: members of a group are Kafka clients of its server",
        (
            (
                "src/klamm/client/groups/group_admin.py",
                'group.door == "kafka" and core.groups.has_members_at_server(group)',
                "False",
            ),
        ),
        ("tests/kafka/test_members_elsewhere.py::test_another_process_sees_the_members_of_kafka_clients",),
    ),
]
