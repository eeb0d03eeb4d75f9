"""Mutants of the console: who may look, what is escaped, what a search and a follower see."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GUARD = "src/klamm/console/security.py"
SECURITY = "tests/console/test_security.py"
HTML = "src/klamm/console/html.py"

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
        ((GUARD, "        if origin is not None and urlsplit(origin).netloc != host:", "        if False:"),),
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
        "console/html.py: whatever is not Html already is escaped",
        ((HTML, "        return escape(visible(child))", "        return visible(child)"),),
        ("tests/console/test_html.py::test_text_is_never_markup",),
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
        ("tests/console/test_pages.py::test_a_plan_that_is_another_one_by_now_is_not_carried_out",),
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
        (("src/klamm/console/tail.py", 'if "last-event-id" in request.headers else None', "if False else None"),),
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
]
