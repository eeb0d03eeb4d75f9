"""Mutants of what guards the Kafka server: users, logins, TLS, ACLs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOGIN = "src/klamm/kafka/security/login.py"
SCRAM = "src/klamm/kafka/security/scram.py"
CERTIFICATES = "src/klamm/kafka/security/certificates.py"
TLS = "src/klamm/kafka/security/tls.py"
AUTHORIZER = "src/klamm/kafka/security/authorizer.py"
INDEX = "src/klamm/store/acl_index.py"
ACLS_TESTS = "tests/kafka/test_authorization.py"
INDEX_TESTS = "tests/store/test_acl_index.py"
DECIDES = f"{INDEX_TESTS}::test_the_index_decides_as_each_acl_by_itself"
EVERY_API = f"{ACLS_TESTS}::test_a_client_without_rights_is_denied_by_every_api_and_a_super_user_by_none"
NEXT_REQUEST = f"{ACLS_TESTS}::test_a_right_that_is_given_or_taken_counts_with_the_next_request"
LOGIN_TESTS = "tests/kafka/test_login.py"
TLS_TESTS = "tests/kafka/test_tls.py"
RECORDS = "src/klamm/kafka/security/tls_records.py"
RECORDS_TESTS = "tests/kafka/test_tls_records.py"
KEY_CHANGES = f"{RECORDS_TESTS}::test_a_client_that_changes_its_keys_again_and_again_gets_neither_loop_nor_memory"
DECOYS = "src/klamm/kafka/security/decoys.py"
DECOY_TESTS = "tests/kafka/test_decoys.py"
ACCESS = "src/klamm/kafka/monitor_access.py"
ACCESS_TESTS = "tests/kafka/test_monitor_access.py"
WRITER = "src/klamm/kafka/response_writer.py"
WRITER_TESTS = "tests/kafka/test_response_writer.py"

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
        "a request of SASL may be as large as any after the login",
        "LOG1",
        ((LOGIN, "return len(frame) <= self._max_bytes or self._may_be_large(frame)", "return True"),),
        (f"{LOGIN_TESTS}::test_a_request_of_sasl_is_never_large",),
    ),
    Mutant(
        "what users are challenged with that do not exist changes with each start of a server",
        "LOG3",
        ((DECOYS, "self._users.decoy_secret() or self._secret", "self._secret"),),
        (f"{DECOY_TESTS}::test_a_stranger_is_challenged_as_before_when_the_server_was_restarted",),
    ),
    Mutant(
        "users that do not exist have the iterations of a new user",
        "LOG3",
        ((DECOYS, "        if not shapes:\n", "        if True:\n"),),
        (f"{DECOY_TESTS}::test_a_decoy_looks_like_the_credentials_that_there_are",),
    ),
    Mutant(
        "a client of the metrics port may send its request as slowly as it likes",
        "MON1",
        (("src/klamm/kafka/monitor.py", "            if deadline < now:\n", "            if False:\n"),),
        (f"{ACCESS_TESTS}::test_a_client_that_sends_a_byte_now_and_then_is_closed",),
    ),
    Mutant(
        "a password that is wrong reads metrics",
        "MON2",
        ((ACCESS, "        if credential is None or not fits or not colon:\n", "        if credential is None:\n"),),
        (f"{ACCESS_TESTS}::test_a_port_beside_a_listener_with_logins_asks_for_a_user",),
    ),
    Mutant(
        "metrics are for every user, whatever ACLs say",
        "MON2",
        ((ACCESS, "    if authorizer is None:\n", "    if True:\n"),),
        (f"{ACCESS_TESTS}::test_with_an_authorizer_a_user_needs_describe_on_the_cluster",),
    ),
    Mutant(
        "a client with a request in each record keeps the loop",
        "TLS6",
        ((TLS, "                if now() >= turn_ends:\n", "                if False:\n"),),
        (f"{RECORDS_TESTS}::test_one_who_sends_a_request_a_record_does_not_keep_the_others_waiting",),
    ),
    Mutant(
        "OpenSSL gets all records at once",
        "TLS6",
        ((RECORDS, "        for _ in range(most):\n", "        for _ in range(len(data)):\n"),),
        (f"{RECORDS_TESTS}::test_records_are_taken_in_order_and_so_many_at_once", KEY_CHANGES),
    ),
    Mutant(
        "records are read while the client reads nothing",
        "TLS6",
        ((TLS, "        self._is_stuck = True\n", "        self._is_stuck = False\n"),),
        (KEY_CHANGES,),
    ),
    Mutant(
        "the loop reads in the middle of a handshake, whose SSL object a thread uses",
        "kafka/security/tls.py: the thread alone uses the SSL object",
        ((TLS, "        if not self._is_ready:\n            return\n", ""),),
        (f"{TLS_TESTS}::test_nothing_is_read_during_a_step_of_a_handshake_when_the_socket_takes_more",),
    ),
    Mutant(
        "a client that reads fast keeps the loop",
        "internals/server.md: a connection has the loop for a millisecond at a time",
        ((WRITER, "                    elif now >= turn_ends:\n", "                    elif False:\n"),),
        (f"{WRITER_TESTS}::test_a_client_that_reads_as_fast_as_we_send_has_the_loop_for_a_turn",),
    ),
    Mutant(
        "what a thread has read is sent though the socket is full",
        "kafka/response_writer.py: a slow reader holds the response once",
        ((WRITER, "(self._is_full or self._is_waiting or self.is_closed)", "(self._is_waiting or self.is_closed)"),),
        (f"{WRITER_TESTS}::test_what_a_thread_has_read_waits_until_the_socket_takes_more",),
    ),
    Mutant(
        "a connection may log in again by another mechanism",
        "LOG4",
        (
            (
                LOGIN,
                "        if self._first_mechanism and mechanism != self._first_mechanism:\n",
                "        if False:\n",
            ),
        ),
        (f"{LOGIN_TESTS}::test_a_connection_that_logs_in_again_does_so_by_the_same_mechanism",),
    ),
    Mutant(
        "a password that is set brings back a user that was removed meanwhile",
        "store/users.py: set_password",
        (
            (
                "src/klamm/store/users.py",
                "                if found == mechanisms:  # else",
                "                if credentials or found == mechanisms:  # else",
            ),
            ("src/klamm/store/users.py", "    if not found:\n        raise", "    if False:\n        raise"),
        ),
        ("tests/store/test_users.py::test_a_password_that_is_set_while_the_user_changes_is_that_of_the_user_as_it_is",),
    ),
    Mutant(
        "logins at the metrics port are not recorded",
        "MON2",
        ((ACCESS, "        if login.user:\n", "        if False:\n"),),
        (f"{ACCESS_TESTS}::test_a_login_is_counted_and_in_the_audit_log",),
    ),
    Mutant(
        "a resumed session outlives its certificate",
        "TLS5",
        ((TLS, "            if ssl.cert_time_to_seconds(", "            if False and ssl.cert_time_to_seconds("),),
        (f"{TLS_TESTS}::test_a_session_that_is_resumed_lets_in_no_longer_than_its_certificate",),
    ),
    Mutant(
        "an equals sign in a name is not escaped",
        "PRI1",
        (("src/klamm/kafka/security/principals.py", "[,=+<>", "[,+<>"),),
        (f"{TLS_TESTS}::test_names_are_written_as_java_writes_them",),
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
                "        if self._records.has_more or self._incoming.pending or self._ssl.pending():\n",
                "        if False:\n",
            ),
        ),
        (f"{RECORDS_TESTS}::test_requests_that_came_in_one_piece_with_one_that_waits_are_answered",),
    ),
    Mutant(
        "an ACL that allows wins over one that denies",
        "store/acl_index.py: one that denies wins",
        ((INDEX, '                    return Decision(False, "acl", acl)\n', "                    continue\n"),),
        (DECIDES, f"{INDEX_TESTS}::test_a_denial_wins_over_what_is_more_specific"),
    ),
    Mutant(
        "prefixes count as whole names",
        "store/acl_index.py: literal and prefixed",
        ((INDEX, "                yield from self.prefixed.get(name[:length], ())\n", "                pass\n"),),
        (f"{INDEX_TESTS}::test_the_most_specific_rule_is_named",),
    ),
    Mutant(
        "READ does not allow DESCRIBE",
        "store/acl_index.py: READ, WRITE, DELETE and ALTER allow DESCRIBE",
        ((INDEX, "    return granted in _IMPLIED_BY.get(operation, ())\n", "    return False\n"),),
        (DECIDES, f"{ACLS_TESTS}::test_authorized_operations_are_those_that_the_client_has"),
    ),
    Mutant(
        "the address of a client does not count",
        "store/acl_index.py: this address (or all)",
        ((INDEX, "                    if _is_from(acl, host):\n", "                    if True:\n"),),
        (DECIDES, f"{ACLS_TESTS}::test_a_client_at_another_address_has_other_rights"),
    ),
    Mutant(
        "ACLs are read once",
        "AUT1",
        ((AUTHORIZER, "        if self._acls.version() == self._version:\n", "        if self._version >= 0:\n"),),
        (NEXT_REQUEST,),
    ),
    Mutant(
        "decisions outlive the ACLs that they were made by",
        "AUT2",
        ((AUTHORIZER, "        self._decisions = {}\n\n    # ---- deciding", "\n    # ---- deciding"),),
        (NEXT_REQUEST,),
    ),
    Mutant(
        "a request that needs no topics does not wait for changed ACLs",
        "AUT1",
        (("src/klamm/kafka/admission.py", "        if self._broker.authorizer is not None:", "        if False:"),),
        (f"{ACLS_TESTS}::test_acls_are_changed_by_those_alone_who_may_alter_the_cluster",),
    ),
    Mutant(
        "the ordinary way of Produce looks up no rights",
        "internals/server.md: ordinary requests of clients that may write",
        (("src/klamm/kafka/apis/ordinary_produce.py", "        if is_guarded and not", "        if False and not"),),
        (NEXT_REQUEST,),
    ),
    Mutant(
        "the ordinary way of Fetch is taken with an authorizer",
        "internals/server.md: with an authorizer each Fetch is the handler's",
        (
            (
                "src/klamm/kafka/apis/fetch.py",
                "    if broker.authorizer is not None or broker.quotas.is_active:",
                "    if False:  # rights",
            ),
        ),
        (NEXT_REQUEST,),
    ),
    Mutant(
        "a fetch session keeps a right that was taken",
        "kafka/apis/fetch.py: ACLs are part of the catalog",
        (
            (
                "src/klamm/kafka/apis/fetch_lookup.py",
                "                and isinstance(name, str)\n",
                "                and isinstance(name, str)\n                and session.id == 0\n",
            ),
        ),
        (f"{ACLS_TESTS}::test_a_fetch_session_gives_no_more_records_when_the_right_is_taken",),
    ),
    Mutant(
        "everyone who is let in may change users",
        "threat-model.md: users are changed by those who may alter the cluster",
        (
            (
                "src/klamm/kafka/apis/users.py",
                "    denied = call.denied(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)\n",
                "    denied = None\n",
            ),
        ),
        (EVERY_API,),
    ),
    Mutant(
        "groups are deleted without a right",
        "reference/kafka-apis.md: rights",
        (
            (
                "src/klamm/kafka/apis/groups.py",
                "        denied = call.denied(Operation.DELETE, ResourceType.GROUP, name)\n",
                "        denied = None\n",
            ),
        ),
        (EVERY_API,),
    ),
    Mutant(
        "an ACL that is damaged counts as it is",
        "ACL2",
        (("src/klamm/store/acls.py", "        if not _is_valid(row):\n", "        if False:\n"),),
        ("tests/store/test_acls.py::test_a_damaged_acl_is_an_error_and_is_found",),
    ),
    Mutant(
        "the metrics port has the security of the first listener",
        "MON2",
        (
            (
                "src/klamm/kafka/service.py",
                "strictest(self.server.endpoints, settings).protocol",
                "self.server.endpoints[0].protocol",
            ),
        ),
        (f"{ACCESS_TESTS}::test_the_port_has_the_security_of_the_strictest_listener",),
    ),
    Mutant(
        "the console of a server with logins is for every user of the machine",
        "a visitor of the console that a guarded server starts needs a token",
        (("src/klamm/cli/serve.py", ", is_guarded=is_guarded(settings))", ")"),),
        ("tests/cli/test_serve_console.py::test_the_console_of_a_guarded_server_asks_for_a_token",),
    ),
]
