"""What strangers, and a user without rights, do to a server with all of its guards: TLS, logins, ACLs, quotas, audit.

As in attacks.py, a function is a recipe, and a call one round of it; `address` is that of a SASL_SSL listener. The user
`mallory` may write to `bombs`, and nothing else.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import klamm
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.kafka.wire.messages import API_VERSIONS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from klamm.store.acl import Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.quotas import Quotas, make_entity
from klamm.store.users import Users
from tests.interop.raw import Raw
from tests.kafka.attacks import PATIENCE_S, Attack, Sizes, _bomb, frame_of
from tests.kafka.authorities import Authority
from tests.kafka.connect import ConnectionEnded
from tests.kafka.honest import TOPIC
from tests.kafka.requests import fetching, producing, sealed
from tests.kafka.sasl_client import authenticate, choose, log_in, plain

__all__ = ["USERS", "connect", "guard_store", "recipes_of", "settings_of", "wrapped"]

USERS = {"alice": "wonderland", "mallory": "malice"}
HALF_HELLO = bytes.fromhex("160301020001")  # a record that is never finished
KIB = 1024


def guard_store(path: Path) -> None:
    """Make the users of a store, their rights and quotas."""
    with klamm.open(path) as store:
        catalog = store._acquired().catalog
        for name, password in USERS.items():
            Users(catalog).add(name, password, ["SCRAM-SHA-256"])

        def allow(who: str, operation: Operation, topic: str) -> Acl:
            literal, allowed = PatternType.LITERAL, Permission.ALLOW
            return Acl(ResourceType.TOPIC, topic, literal, f"User:{who}", "*", operation, allowed)

        both = (Operation.READ, Operation.WRITE)
        rules = [allow("alice", operation, TOPIC) for operation in both]
        Acls(catalog).add([*rules, allow("mallory", Operation.WRITE, "bombs")])
        quota: dict[str, float | None] = {"producer_byte_rate": 2e6, "request_percentage": 20}
        Quotas(catalog).alter([(make_entity([("user", "mallory")]), quota)])


def settings_of(authority: Authority) -> dict[str, object]:
    return {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.path.with_name("server.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "connection.setup.timeout.ms": 3000,
        "audit.topic": "audit",
        "connections.max.idle.ms": 7_200_000,
    }


def wrapped(raw: Raw, context: ssl.SSLContext) -> Raw:
    """Return the connection, over TLS."""
    try:
        raw._socket = context.wrap_socket(raw._socket, server_hostname="localhost")
    except BaseException:
        raw.close()
        raise
    return raw


def connect(authority: Authority, user: str, address: str, client_id: str, patience: float) -> Raw:
    """Return a connection of a user that has logged in."""
    raw = wrapped(Raw(address, client_id, patience), authority.context())
    assert log_in(raw, user, USERS[user], "PLAIN").error_code == 0
    return raw


@contextmanager
def strangers(address: str, count: int) -> Iterator[list[Raw]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Raw(address, "hostile", PATIENCE_S)) for _ in range(count)]


def half_handshakes(address: str, chance: random.Random, sizes: Sizes) -> None:
    """ClientHello that is cut off; the server may wait for the rest until the time for the login is over."""
    with strangers(address, 100) as clients:
        for client in clients:
            client.send_bytes(HALF_HELLO + chance.randbytes(chance.randrange(200)))
        time.sleep(PATIENCE_S)


def dripping_handshakes(address: str, chance: random.Random, sizes: Sizes) -> None:
    with strangers(address, 20) as clients:
        for byte in HALF_HELLO:
            for client in clients:
                client.send_bytes(bytes([byte]))
            time.sleep(PATIENCE_S / 8)


def noise(address: str, chance: random.Random, sizes: Sizes) -> None:
    """What is not TLS."""
    for _ in range(20):
        with strangers(address, 1) as (raw,), suppress(OSError):
            raw.send_bytes(chance.randbytes(chance.choice([1, 5, 300, 20_000])))


def handshakes(context: ssl.SSLContext, address: str, chance: random.Random, sizes: Sizes) -> None:
    """As many as there can be, each with its signature; nothing comes after it."""
    with strangers(address, 30) as clients:
        for client in clients:
            wrapped(client, context)


def silent_after_handshakes(context: ssl.SSLContext, address: str, chance: random.Random, sizes: Sizes) -> None:
    with strangers(address, 50) as clients:
        for client in clients:
            wrapped(client, context)
            client.send_bytes(b"\0\0\xff\0" + chance.randbytes(1000))  # the beginning of a request
        time.sleep(PATIENCE_S)


def wrong_passwords(context: ssl.SSLContext, address: str, chance: random.Random, sizes: Sizes) -> None:
    for number in range(5):
        with strangers(address, 1) as (raw,):
            wrapped(raw, context)
            choose(raw, "PLAIN")
            authenticate(raw, plain(chance.choice(["alice", f"nobody{number}"]), "x" * 1000))


def begun_logins(context: ssl.SSLContext, address: str, chance: random.Random, sizes: Sizes) -> None:
    """SCRAM, first messages alone, again and again on one connection."""
    with strangers(address, 1) as (raw,):
        wrapped(raw, context)
        for number in range(200):
            choose(raw, "SCRAM-SHA-256")
            authenticate(raw, b"n,,n=user%d,r=x%b" % (number, b",x=y" * 10))


def floods_before_the_login(context: ssl.SSLContext, address: str, chance: random.Random, sizes: Sizes) -> None:
    """ApiVersions, and nothing is read."""
    frame = frame_of(_versions)
    with strangers(address, 4) as clients, suppress(TimeoutError):
        for client in clients:
            client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wrapped(client, context)._socket.settimeout(PATIENCE_S)
            client.send_bytes(frame * 2000)


def _versions() -> tuple[Any, int, dict[str, Any]]:
    return API_VERSIONS, 0, {}


def denied(authority: Authority, address: str, chance: random.Random, sizes: Sizes) -> None:
    """A user without rights tries names and topics; each denial is counted, logged and recorded."""
    with connect(authority, "mallory", address, "hostile", PATIENCE_S) as raw:
        names = [METADATA.request.Topic(name=f"secret-{chance.randrange(1 << 40)}") for _ in range(500)]
        for _ in range(5):
            raw.ask(METADATA, 12, topics=names, allow_auto_topic_creation=True)
            raw.ask(PRODUCE, 9, **producing({(TOPIC, 0): sealed(1)}))
            raw.ask(FETCH, 12, **fetching({(TOPIC, 0): 0}))
            raw.ask(CREATE_TOPICS, 7, topics=[CREATE_TOPICS.request.Topic(name="mine", num_partitions=1)])


def bombs(authority: Authority, address: str, chance: random.Random, sizes: Sizes) -> None:
    frame = frame_of(_bomb, sizes.bomb_bytes)
    with connect(authority, "mallory", address, "hostile", PATIENCE_S) as raw:
        raw.send_bytes(frame * 2)
        raw.receive()


def large_sasl(authority: Authority, address: str, chance: random.Random, sizes: Sizes) -> None:
    """A login again, of megabytes."""
    with connect(authority, "mallory", address, "hostile", PATIENCE_S) as raw, suppress(ConnectionEnded):
        choose(raw, "SCRAM-SHA-256")
        authenticate(raw, b"n,,n=mallory,r=x" + b"," * (4 * KIB * KIB))


def recipes_of(authority: Authority) -> tuple[Attack, ...]:
    """Return all of them; `context` is of a client that trusts the server."""
    context = authority.context()
    alone = (half_handshakes, dripping_handshakes, noise)
    over_tls = (handshakes, silent_after_handshakes, wrong_passwords, begun_logins, floods_before_the_login)
    return (
        *map(Attack, alone),
        *(Attack(partial(each, context)) for each in over_tls),
        *(Attack(partial(each, authority)) for each in (denied, bombs, large_sasl)),
    )
