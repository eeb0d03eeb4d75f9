"""Settings of a server: the table. Names are Kafka's where Kafka has the setting; the others are Klamm's own.

The command line, the TOML file and `klamm.server(...)` take these names; in Python, `_` stands for `.` and `-`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from klamm.errors import InvalidSetting
from klamm.kafka.addresses import is_this_machine
from klamm.kafka.security.endpoints import PROTOCOLS, endpoints_of, mechanisms_of
from klamm.kafka.security.oauth import algorithms_of, check_key_url
from klamm.kafka.security.principals import PrincipalRules
from klamm.store.names import nearest
from klamm.store.settings import Setting, Value

__all__ = ["SERVER_SETTINGS", "STANDARD_AUTHORIZER", "ServerSettings"]

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
_MIB = 1024 * 1024


def _number(name: str, default: int, low: int, high: int = _INT32, *, doc: str) -> Any:
    kind = "int" if high <= _INT32 else "long"
    return field(default=default, metadata={"setting": Setting(name, kind, default, doc, low, high)})


def _text(name: str, default: str, *, doc: str) -> Any:
    return field(default=default, metadata={"setting": Setting(name, "string", default, doc)})


def _switch(name: str, default: str, *, doc: str) -> Any:
    row = Setting(name, "boolean", default, doc, choices=("true", "false"))
    return field(default=default == "true", metadata={"setting": row})


def _choice(name: str, default: str, choices: tuple[str, ...], *, doc: str) -> Any:
    return field(default=default, metadata={"setting": Setting(name, "string", default, doc, choices=choices)})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server, typed: `settings.max_connections` is `max.connections`."""

    # fmt: off
    kafka: int = _number("kafka", 9092, 0, 65535,
        doc="Port for Kafka clients; 0: any free one.")
    host: str = _text("host", "127.0.0.1",
        doc="The address to listen on: 127.0.0.1 for this machine alone, 0.0.0.0 for all, :: for all with IPv6.")
    advertise: str = _text("advertise", "",
        doc="Advertised host:port for clients. Empty: the address that each client connected to.")
    listeners: str = _text("listeners", "",
        doc="Addresses to listen on, each with its security: NAME://host:port, separated by commas. NAME is PLAINTEXT,"
            " SSL, SASL_PLAINTEXT or SASL_SSL, or is in listener.security.protocol.map. Empty: host and kafka give the"
            " address, and clients need not log in.")
    listener_security_protocol_map: str = _text("listener.security.protocol.map", "",
        doc="Security protocols of listeners with names of their own: NAME:PROTOCOL, separated by commas.")
    advertised_listeners: str = _text("advertised.listeners", "",
        doc="Addresses that clients of a listener are told to connect to: NAME://host:port, separated by commas. A"
            " listener that is not here: the address that each client connected to.")
    sasl_enabled_mechanisms: str = _text("sasl.enabled.mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512",
        doc="Mechanisms by which clients of SASL listeners log in: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER,"
            " separated by commas. PLAIN sends the password as it is. (Kafka: GSSAPI, which is not supported.)")
    sasl_oauthbearer_jwks_endpoint_url: str = _text("sasl.oauthbearer.jwks.endpoint.url", "",
        doc="URL of the public keys (a JWKS) that verify OAUTHBEARER tokens: file:///…, https://… or http://….")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _number(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, 1000, _INT64,
        doc="Interval, in milliseconds, at which the keys are fetched again; also, at most every ten seconds, for a"
            " token with an unknown key.")
    sasl_oauthbearer_jwks_max_age_ms: int = _number("sasl.oauthbearer.jwks.max.age.ms", 86_400_000, 1000, _INT64,
        doc="Time, in milliseconds, for which keys are valid that cannot be fetched again; after it, OAUTHBEARER"
            " logins fail.")
    sasl_oauthbearer_expected_issuer: str = _text("sasl.oauthbearer.expected.issuer", "",
        doc="Required issuer (iss) of tokens.")
    sasl_oauthbearer_expected_audience: str = _text("sasl.oauthbearer.expected.audience", "",
        doc="Audiences, separated by commas; a token needs one of them (aud).")
    sasl_oauthbearer_algorithms: str = _text("sasl.oauthbearer.algorithms", "RS256,PS256,ES256",
        doc="Accepted signature algorithms of tokens, separated by commas: RS, PS or ES with 256, 384 or 512, or"
            " Ed25519.")
    sasl_oauthbearer_sub_claim_name: str = _text("sasl.oauthbearer.sub.claim.name", "sub",
        doc="Claim of a token that names the user.")
    sasl_oauthbearer_clock_skew_seconds: int = _number("sasl.oauthbearer.clock.skew.seconds", 30, 0, 3600,
        doc="Maximum difference, in seconds, between the clock of the issuer and ours.")
    ssl_keystore_location: str = _text("ssl.keystore.location", "",
        doc="PEM file with the certificate of the server, its chain and its private key, which is not encrypted. It is"
            " loaded again when it changes.")
    ssl_key_location: str = _text("ssl.key.location", "",
        doc="PEM file with the private key, if ssl.keystore.location has none.")
    ssl_truststore_location: str = _text("ssl.truststore.location", "",
        doc="PEM file with the certificates of the authorities that client certificates are checked with; see"
            " ssl.client.auth.")
    ssl_client_auth: str = _choice("ssl.client.auth", "none", ("none", "requested", "required"),
        doc="Whether clients of SSL listeners need a certificate. Clients of SASL_SSL listeners log in instead.")
    ssl_principal_mapping_rules: str = _text("ssl.principal.mapping.rules", "DEFAULT",
        doc="Rules that map a client certificate to a user: RULE:pattern/replacement/[LU], separated by commas; the"
            " first that matches the distinguished name counts. DEFAULT: the name itself.")
    connection_setup_timeout_ms: int = _number("connection.setup.timeout.ms", 10_000, 100,
        doc="Time limit, in milliseconds, for the TLS handshake and the login; a connection that takes longer is"
            " closed.")
    connection_failed_authentication_delay_ms: int = _number(
        "connection.failed.authentication.delay.ms", 100, 0, 10_000,
        doc="Delay, in milliseconds, of the response to a failed login.")
    connections_max_reauth_ms: int = _number("connections.max.reauth.ms", 0, 0, _INT64,
        doc="Validity of a login, in milliseconds; a client that has not logged in again by then is disconnected with"
            " its next request. 0: as long as the connection lasts.")
    sasl_server_max_receive_size: int = _number("sasl.server.max.receive.size", 64 * 1024, 1024,
        doc="Maximum size, in bytes, of a request of a client that has not logged in. (Kafka: 524288.)")
    authorizer_class_name: str = _choice("authorizer.class.name", "", ("", STANDARD_AUTHORIZER),
        doc="Authorizer that decides what clients may do. org.apache.kafka.metadata.authorizer.StandardAuthorizer, as"
            " in Kafka: the ACLs of the store (klamm acl). Empty: clients that are let in may do everything.")
    super_users: str = _text("super.users", "",
        doc="Principals that may do everything, whatever ACLs say: User:alice, separated by semicolons.")
    allow_everyone_if_no_acl_found: bool = _switch("allow.everyone.if.no.acl.found", "false",
        doc="Whether everyone may do everything with a resource that has no ACL.")
    quota_controller_mutation_default: int = _number("quota.controller.mutation.default", 0, 0,
        doc="Maximum number of partitions that a user may create or delete a second, unless a controller_mutation_rate"
            " is set for the user. 0: no limit.")
    audit_topic: str = _text("audit.topic", "",
        doc="Topic for the audit log: logins, denied requests and changes, as JSON (OCSF). Created if absent. Empty:"
            " none.")
    node_id: int = _number("node-id", 1, 0,
        doc="Number of this broker, as clients see it.")
    default_partitions: int = _number("default-partitions", 1, 1, 10_000,
        doc="Number of partitions of a topic whose creator does not say. (Kafka: num.partitions.)")
    foreign_replicas_enable: bool = _switch("foreign.replicas.enable", "false",
        doc="Whether the replica assignment of a new topic or partition may name other brokers, as one written for a"
            " cluster does. There is one replica, whatever it names.")
    delete_topic_enable: bool = _switch("delete.topic.enable", "true",
        doc="Whether clients may delete topics.")
    auto_create_topics_enable: bool = _switch("auto.create.topics.enable", "true",
        doc="Whether a missing topic is created when a client asks for it.")
    metrics: int = _number("metrics", -1, -1, 65535,
        doc="Port of /metrics, /healthz and /status; 0: any free one, -1: none.")
    metrics_security_protocol: str = _choice("metrics.security.protocol", "", ("", *PROTOCOLS),
        doc="Security of the metrics port: HTTPS, a user's name and password (Basic) or token (Bearer), as a listener"
            " of that protocol has it. Empty: the protocol of the listener where clients need most.")
    request_log_size: int = _number("request.log.size", 0, 0, 1000,
        doc="Number of recent requests of each connection that /connections of the metrics port shows, decoded,"
            " without values, passwords or other bytes; 0: none. Needs metrics, and a host that only this machine"
            " reaches.")
    max_connections: int = _number("max.connections", 10_000, 1,
        doc="Maximum number of connections at a time; further ones are closed at once.")
    max_connections_per_ip: int = _number("max.connections.per.ip", _INT32, 1,
        doc="Maximum number of connections of one client address at a time; further ones are closed at once.")
    connections_max_idle_ms: int = _number("connections.max.idle.ms", 600_000, 1, _INT64,
        doc="Time, in milliseconds, after which a connection is closed on which nothing was received or sent, also if"
            " its request waits.")
    socket_request_max_bytes: int = _number("socket.request.max.bytes", 100 * _MIB, 1024,
        doc="Maximum size, in bytes, of a request; a connection with a larger one is closed.")
    control_request_max_bytes: int = _number("control.request.max.bytes", 8 * _MIB, 64 * 1024,
        doc="Maximum size, in bytes, of a request other than Produce; a connection with a larger one is closed when"
            " its first bytes arrive. At least group.max.bytes.")
    request_max_elements: int = _number("request.max.elements", 65_536, 4096, 1 << 18,
        doc="Maximum number of elements of all arrays of a request together: partitions, names, keys. A connection with"
            " a request that has more is closed. The memory and the time that a request costs grow with it; other"
            " clients are answered in between.")
    queued_max_request_bytes: int = _number("queued.max.request.bytes", 256 * _MIB, _MIB, _INT64,
        doc="Maximum memory, in bytes, for requests of all connections together; beyond it, nothing is read.")
    socket_response_max_bytes: int = _number("socket.response.max.bytes", 100 * _MIB, 64 * 1024,
        doc="Maximum size, in bytes, of a response without its records; a connection that asks for a larger one is"
            " closed.")
    queued_max_response_bytes: int = _number("queued.max.response.bytes", 256 * _MIB, _MIB, _INT64,
        doc="Maximum memory, in bytes, for responses that clients have not read, of all connections together; beyond"
            " it, the connection whose client has not read for longest is closed.")
    fetch_max_bytes: int = _number("fetch.max.bytes", 55 * _MIB, 1024, 1024 * _MIB,
        doc="Maximum size, in bytes, of the records in one Fetch response, whatever the client asks for; the first"
            " batch is sent however large it is.")
    fetch_flushed_only: bool = _switch("fetch.flushed.only", "false",
        doc="Whether consumers see records only when they are on disk. If not, a power cut or a failed sync may take"
            " back records that were consumed; clients that check leader epochs notice (Java, librdkafka since 2.1)."
            " If so, a fetch of records that are not on disk syncs them, and waits for that.")
    max_incremental_fetch_session_cache_slots: int = _number("max.incremental.fetch.session.cache.slots", 1000, 0,
        doc="Maximum number of fetch sessions. A consumer without one names all its partitions in each Fetch; a"
            " session that was not used for two minutes gives way to a new one.")
    max_incremental_fetch_session_cache_partitions: int = _number(
        "max.incremental.fetch.session.cache.partitions", 100_000, 0,
        doc="Maximum number of partitions of all fetch sessions together, at about 1 KiB each; one session has up to"
            " 10,000.")
    max_open_ranges: int = _number("max.open.ranges", 0, 0,
        doc="Maximum number of segment ranges that responses hold open which clients have not read, of all connections"
            " together; 0: a quarter of the open files that the process may have. Beyond it, the connection whose"
            " client has not read for longest is closed; one response holds up to a sixteenth of them.")
    decompression_max_bytes: int = _number("decompression.max.bytes", 32 * _MIB, _MIB, 256 * _MIB,
        doc="Maximum memory, in bytes, for the decompressed part of a batch that is checked; two batches are checked"
            " at a time. Batches are decompressed in pieces: one that needs more at a time (snappy in one block, zstd"
            " with a larger window) is MESSAGE_TOO_LARGE.")
    auto_create_topics_max: int = _number("auto.create.topics.max", 100, 1,
        doc="Maximum number of topics that one Metadata request creates; further ones are UNKNOWN_TOPIC_OR_PARTITION.")
    max_groups: int = _number("max.groups", 10_000, 1,
        doc="Maximum number of groups with members; joining a further one is GROUP_MAX_SIZE_REACHED.")
    group_max_bytes: int = _number("group.max.bytes", 4 * _MIB, 1024,
        doc="Maximum size, in bytes, of the subscriptions of a group's members together, and of its assignments.")
    groups_max_bytes: int = _number("groups.max.bytes", 256 * _MIB, 64 * 1024, _INT64,
        doc="Maximum memory, in bytes, that all groups together hold for their members: ids, subscriptions,"
            " assignments, and about 2 KiB for each group and each member. Joining or assigning beyond it is"
            " GROUP_MAX_SIZE_REACHED, and is logged.")
    group_initial_rebalance_delay_ms: int = _number("group.initial.rebalance.delay.ms", 0, 0,
        doc="Time, in milliseconds, that an empty group waits for more members before its first assignment. (Kafka:"
            " 3000.)")
    group_min_session_timeout_ms: int = _number("group.min.session.timeout.ms", 6_000, 1,
        doc="Shortest session timeout, in milliseconds, that a member may ask for.")
    group_max_session_timeout_ms: int = _number("group.max.session.timeout.ms", 1_800_000, 1,
        doc="Longest session timeout, in milliseconds, that a member may ask for.")
    offset_metadata_max_bytes: int = _number("offset.metadata.max.bytes", 4096, 0, 4096,
        doc="Maximum size, in bytes, of the metadata of a committed offset.")
    transaction_max_timeout_ms: int = _number("transaction.max.timeout.ms", 900_000, 1,
        doc="Longest timeout, in milliseconds, that a transactional producer may ask for.")
    max_transactional_ids: int = _number("max.transactional.ids", 100_000, 1,
        doc="Maximum number of transactional ids that are remembered; a further one is POLICY_VIOLATION, and is logged."
            " See transactional.id.expiration.ms.")
    transactional_id_expiration_ms: int = _number("transactional.id.expiration.ms", 604_800_000, 1,
        doc="Time, in milliseconds, for which a transactional id is remembered after its last use.")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _number(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 600_000, 1,
        doc="Interval, in milliseconds, at which the server looks for transactional ids to forget. (Kafka: 3600000.)")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _number(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 1_000, 1,
        doc="Interval, in milliseconds, at which the server looks for transactions that have timed out. (Kafka:"
            " 10000.)")
    offsets_retention_check_interval_ms: int = _number("offsets.retention.check.interval.ms", 600_000, 1, _INT64,
        doc="Interval, in milliseconds, at which the server forgets groups with neither members nor offsets. (Offsets"
            " do not expire.)")
    log_cleaner_backoff_ms: int = _number("log.cleaner.backoff.ms", 15_000, 100, _INT64,
        doc="Interval, in milliseconds, at which the server looks for logs to compact, records to expire and"
            " transactions to end.")
    # fmt: on

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise InvalidSetting(
                "is empty", setting="host", hint="expected an address: 127.0.0.1 is this machine alone, 0.0.0.0 all"
            )
        if self.control_request_max_bytes < self.group_max_bytes:
            raise InvalidSetting("is less than group.max.bytes", setting="control.request.max.bytes")
        if self.request_log_size and (self.metrics < 0 or not is_this_machine(self.host)):
            raise InvalidSetting(
                "requests are shown at the metrics port of this machine alone",
                setting="request.log.size",
                hint="set metrics, and host to 127.0.0.1; listeners may be elsewhere",
            )
        endpoints_of(self)
        mechanisms_of(self)
        algorithms_of(self)
        check_key_url(self)
        PrincipalRules(self.ssl_principal_mapping_rules)
        for principal in self.super_user_names:
            if not all(principal.partition(":")):
                raise InvalidSetting(
                    f"{principal!r} is not a principal", setting="super.users", hint="expected User:alice;User:bob"
                )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSetting("is more than group.max.session.timeout.ms", setting="group.min.session.timeout.ms")

    @classmethod
    def of(cls, values: Mapping[str, Value | bool]) -> ServerSettings:
        """Return the defaults, with `values` by name; `_`, `.` and `-` count as the same."""
        known = {_key(name): name for name in SERVER_SETTINGS}
        typed: dict[str, Any] = {}
        for name, value in values.items():
            found = known.get(_key(name))
            if found is None:
                _check_not_of_one_listener(name)
                raise InvalidSetting("a server has no such setting", setting=name, hint=nearest(name, SERVER_SETTINGS))
            typed[_key(name)] = _parse(SERVER_SETTINGS[found], value)
        return cls(**typed)

    @property
    def super_user_names(self) -> tuple[str, ...]:
        """The principals of `super.users`."""
        return tuple(filter(None, (each.strip() for each in self.super_users.split(";"))))

    def advertised(self) -> tuple[str, int] | None:
        """Return host and port of `advertise`; None if it is not set."""
        if not self.advertise:
            return None
        host, _, port = self.advertise.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
            raise InvalidSetting(f"{self.advertise!r} is invalid", setting="advertise", hint="expected host:port")
        return host, int(port)

    def __getitem__(self, name: str) -> str:
        """Return the value of `name` as a string."""
        value = getattr(self, _key(name))
        return str(value).lower() if isinstance(value, bool) else str(value)


def _check_not_of_one_listener(name: str) -> None:
    """Raise InvalidSetting for a setting of one listener, as Kafka has them."""
    if _key(name).startswith("listener_name_"):
        setting = name.split(".", 3)[-1] if name.count(".") > 2 else "it"
        raise InvalidSetting(
            "a listener has no settings of its own but its protocol and address",
            setting=name,
            hint=f"set {setting} without listener.name: it counts for all listeners",
        )


def _key(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _parse(setting: Setting, value: Value | bool) -> Value | bool:
    if setting.type == "boolean":
        return setting.parse(str(value).lower() if isinstance(value, bool) else value) == "true"
    if setting.type == "string" and not setting.choices:
        if not isinstance(value, str):
            raise InvalidSetting(f"{value!r} is invalid", setting=setting.name, hint="expected text")
        return value
    return setting.parse(value)


SERVER_SETTINGS: dict[str, Setting] = {
    f.metadata["setting"].name: f.metadata["setting"] for f in fields(ServerSettings) if f.metadata
}
assert all(_key(name) == f.name for name, f in zip(SERVER_SETTINGS, fields(ServerSettings), strict=True))
