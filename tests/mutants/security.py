"""Mutants of what guards the Kafka server: users, logins, TLS."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOGIN = "src/klamm/kafka/security/login.py"
SCRAM = "src/klamm/kafka/security/scram.py"
CERTIFICATES = "src/klamm/kafka/security/certificates.py"
TLS = "src/klamm/kafka/security/tls.py"
LOGIN_TESTS = "tests/kafka/test_login.py"
TLS_TESTS = "tests/kafka/test_tls.py"

MUTANTS = [
    Mutant(
        "a client that has not logged in may send every request",
        "LOG1",
        ((LOGIN, "        if key in keys and not self._is_failed:\n", "        if not self._is_failed:\n"),),
        (f"{LOGIN_TESTS}::test_before_the_login_every_other_request_closes_the_connection_undecoded",),
    ),
    Mutant(
        "a client that has not logged in may send frames of any size",
        "LOG1",
        (
            (
                "src/klamm/kafka/session.py",
                "            channel.reader.max_request = listener.broker.settings.sasl_server_max_receive_size\n",
                "",
            ),
        ),
        (f"{LOGIN_TESTS}::test_before_the_login_large_frames_are_not_read",),
    ),
    Mutant(
        "a client may take forever to log in",
        "LOG2",
        ((LOGIN, "broker.loop.call_later(limit_s, self._time_out)", "None"),),
        (f"{LOGIN_TESTS}::test_a_connection_that_does_not_log_in_in_time_is_closed",),
    ),
    Mutant(
        "the password of PLAIN is not checked",
        "a wrong password is refused",
        ((LOGIN, "        if credential is None or not fits:\n", "        if credential is None:\n"),),
        (f"{LOGIN_TESTS}::test_a_wrong_password_and_a_user_that_does_not_exist_get_the_same_response",),
    ),
    Mutant(
        "the server's part of the nonce is always the same",
        "what is recorded of a login cannot be sent again: the nonce is a part of what is proved",
        ((SCRAM, "base64.b64encode(os.urandom(_NONCE_BYTES))", 'b"x"'),),
        (f"{LOGIN_TESTS}::test_what_is_recorded_of_a_login_cannot_be_sent_again",),
    ),
    Mutant(
        "a connection may log in again as another user",
        "LOG4",
        ((LOGIN, "        if self.user and user != self.user:\n", "        if False:\n"),),
        (f"{LOGIN_TESTS}::test_a_connection_that_logs_in_again_stays_who_it_was",),
    ),
    Mutant(
        "a login does not expire",
        "connections.max.reauth.ms",
        ((LOGIN, "            if self._broker.loop.time() < self._expires:\n", "            if True:\n"),),
        (f"{LOGIN_TESTS}::test_a_login_expires_and_can_be_renewed",),
    ),
    Mutant(
        "a row of a credential is used as it is",
        "USR3",
        (("src/klamm/store/users.py", "    if checksum != crc(*values):\n", "    if False:\n"),),
        ("tests/store/test_users.py::test_a_damaged_credential_lets_no_one_in_and_is_found",),
    ),
    Mutant(
        "certificates of clients are not asked for",
        "ssl.client.auth",
        ((CERTIFICATES, "        context.verify_mode = client_auth\n", ""),),
        (f"{TLS_TESTS}::test_a_client_without_a_certificate_or_with_a_wrong_one_is_refused",),
    ),
    Mutant(
        "versions before TLS 1.2 are spoken",
        "TLS2",
        (
            (
                CERTIFICATES,
                "        context.minimum_version = ssl.TLSVersion.TLSv1_2\n",
                (
                    '        context.set_ciphers("ALL:@SECLEVEL=0")\n'
                    "        context.minimum_version = ssl.TLSVersion.TLSv1\n"
                ),
            ),
        ),
        (f"{TLS_TESTS}::test_versions_before_tls_1_2_are_refused",),
    ),
    Mutant(
        "a TLS handshake may take forever",
        "TLS3",
        ((TLS, "self._listener.broker.loop.call_later(limit_s, self._time_out)", "None"),),
        (f"{TLS_TESTS}::test_a_handshake_that_is_not_finished_in_time_ends",),
    ),
    Mutant(
        "certificates are loaded once",
        "TLS1",
        ((CERTIFICATES, "        if files == self._files:\n", "        if True:\n"),),
        (f"{TLS_TESTS}::test_new_certificates_are_taken_up_and_connections_stay",),
    ),
    Mutant(
        "what was decrypted and not read is forgotten until more comes",
        "requests are answered in order, all of them",
        (
            (
                TLS,
                "        if self._incoming.pending or self._ssl.pending():\n",
                "        if False:\n",
            ),
        ),
        (f"{TLS_TESTS}::test_requests_that_came_with_one_that_waits_are_answered_though_nothing_more_comes",),
    ),
]
