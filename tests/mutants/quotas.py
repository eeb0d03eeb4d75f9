"""Mutants of quotas, tokens and the audit log of the Kafka server."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

QUOTAS = "src/klamm/kafka/quotas.py"
METER = "src/klamm/kafka/request_meter.py"
OAUTH = "src/klamm/kafka/security/oauth.py"
QUOTA_TESTS = "tests/kafka/test_quotas.py"
AUDIT_TESTS = "tests/kafka/test_audit.py"
TOKEN_TESTS = "tests/kafka/test_oauth.py"

MUTANTS = [
    Mutant(
        "requests of a client that is throttled are read all the same",
        "QUO1",
        (
            (
                "src/klamm/kafka/channel.py",
                "            self._muted = self._listener.broker.loop.call_later(wait_s, self._unmute)\n",
                "            self._muted = None\n",
            ),
        ),
        (f"{QUOTA_TESTS}::test_nothing_is_read_of_a_throttled_client_and_others_are_served",),
    ),
    Mutant(
        "a consumer in debt gets records on another connection",
        "QUO1",
        ((METER, "    wait_s = bucket.wait(now)\n", "    wait_s = 0.0\n"),),
        (f"{QUOTA_TESTS}::test_a_consumer_in_debt_gets_no_records_on_another_connection_either",),
    ),
    Mutant(
        "ordinary Produce requests count in no quota",
        "QUO1",
        (
            (
                "src/klamm/kafka/apis/ordinary_produce.py",
                "session.charge(PRODUCE, request.client_id) if broker.quotas.is_active else 0.0",
                "0.0",
            ),
        ),
        (f"{QUOTA_TESTS}::test_a_producer_is_throttled_to_its_rate",),
    ),
    Mutant(
        "a quota of all users counts before that of a user",
        "quotas count in Kafka's order",
        ((QUOTAS, "((both, user), (defaults, None))", "((defaults, None), (both, user))"),),
        (f"{QUOTA_TESTS}::test_the_quota_that_counts_is_the_first_in_kafkas_order",),
    ),
    Mutant(
        "a bucket fills without a limit while its client is idle",
        "QUO1",
        ((QUOTAS, "min(self.burst, self._tokens + (now - self._at) * self.rate)",
          "self._tokens + (now - self._at) * self.rate"),),
        (f"{QUOTA_TESTS}::test_a_bucket_gives_back_what_was_not_used_up_to_its_burst",),
    ),
    Mutant(
        "a token may be signed by any algorithm",
        "OAU1",
        ((OAUTH, "        if algorithm not in self._algorithms:\n", "        if not algorithm:\n"),),
        (f"{TOKEN_TESTS}::test_keys_of_rsa_count_too",),
    ),
    Mutant(
        "a token may be for another audience",
        "OAU2",
        ((OAUTH, "        if not any(isinstance(each, str) and each in self._audiences for each in named):\n",
          "        if not named:\n"),),
        (f"{TOKEN_TESTS}::test_a_token_that_is_not_right_is_refused",),
    ),
    Mutant(
        "a token that has expired lets its user in",
        "OAU2",
        ((OAUTH, "        if expires + self._skew_s <= now:\n", "        if expires < 0:\n"),),
        (f"{TOKEN_TESTS}::test_a_token_that_is_not_right_is_refused",),
    ),
    Mutant(
        "a client with a token may ask to be somebody else",
        "kafka/security/oauth.py: the authorization id is the user",
        (
            (
                "src/klamm/kafka/security/login.py",
                "        if bearer.identity and bearer.identity != verified.user:\n",
                "        if False:\n",
            ),
        ),
        (f"{TOKEN_TESTS}::test_a_client_may_say_whom_it_wants_to_be_if_that_is_the_user_of_its_token",),
    ),
    Mutant(
        "keys without an id count for no token that names one",
        "OAU1",
        ((OAUTH, "        candidates = named or [key for name, key in keys if kid is None or name is None]\n",
          "        candidates = named or [key for name, key in keys if kid is None]\n"),),
        (f"{TOKEN_TESTS}::test_keys_without_an_id_count_and_so_does_a_token_that_names_none",),
    ),
    Mutant(
        "keys of tokens count forever",
        "OAU3",
        ((OAUTH, "        if self._steady() - self._fetched > self._max_age_s:\n", "        if not self._keys:\n"),),
        (f"{TOKEN_TESTS}::test_keys_that_cannot_be_fetched_count_until_their_age_limit",),
    ),
    Mutant(
        "denials fill the queue of the audit log",
        "AUD3",
        (("src/klamm/kafka/audit.py", "return left_out if count < REFUSALS_PER_S else None\n", "return left_out\n"),),
        (f"{AUDIT_TESTS}::test_denials_beyond_a_rate_are_left_out_and_the_next_event_says_how_many",),
    ),
    Mutant(
        "changes that fail fill the queue of the audit log",
        "AUD3",
        (
            (
                "src/klamm/kafka/audit.py",
                "left_out = self._refused(call.session.principal) if change.error_code else 0\n",
                "left_out = 0\n",
            ),
        ),
        (f"{AUDIT_TESTS}::test_failed_changes_beyond_a_rate_are_left_out_so_they_displace_no_other_event",),
    ),
    Mutant(
        "the queue of the audit log is not bounded",
        "AUD1",
        (("src/klamm/kafka/audit.py", "        if self._queue.qsize() >= MAX_QUEUED:\n", "        if False:\n"),),
        ("tests/kafka/test_audit.py::test_events_beyond_the_queue_are_dropped_and_counted_and_said",),
    ),
    Mutant(
        "a redirect leads to other keys",
        "keys come from the URL that was set",
        (("src/klamm/kafka/security/key_download.py", "build_opener(_NoRedirects, ", "build_opener("),),
        (f"{TOKEN_TESTS}::test_a_redirect_is_not_followed",),
    ),
    Mutant(
        "a server of keys may drip for ever",
        "a download of keys is over within its limit",
        (("src/klamm/kafka/security/key_download.py", "connected.shutdown(SHUT_RDWR)\n", "pass\n"),),
        (f"{TOKEN_TESTS}::test_a_server_of_keys_that_sends_a_byte_now_and_then_holds_no_thread",),
    ),
]  # fmt: skip
