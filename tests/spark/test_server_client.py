"""The client of a server on raw sockets: logins, what it says of a server that is not there, SCRAM. Without Spark."""

from __future__ import annotations

import pickle
import socket
import threading
from pathlib import Path

import pytest

import klamm
from klamm.errors import InvalidSetting, StoreError, UnknownTopic, Unreachable
from klamm.kafka.security.scram import ScramExchange
from klamm.spark.server import client as client_module
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.client import LATEST, Client
from klamm.spark.server.connection import Connection
from klamm.spark.server.scram import BadServer, ScramClient
from klamm.store.scram import derive
from klamm.store.users import Users
from klamm.types import TopicPartition
from tests.kafka.authorities import Authority
from tests.kafka.connect import served
from tests.serving import free_port

LISTENERS = "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
SECRET = "won=der,land"


def names_at(options: dict[str, str]) -> list[str]:
    client = Client(ServerAddress.parse(options))
    try:
        return sorted(client.topics())
    finally:
        client.close()


def test_the_client_logs_in_by_password_and_certificate_and_says_why_it_cannot(
    store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders")
    Users(store._acquired().catalog).add("ali=ce,", SECRET)
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    settings = {
        "listeners": LISTENERS,
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "ssl_keystore_location": str(authority.server()),
        "ssl_truststore_location": str(authority.path),
        "ssl_client_auth": "required",
        "connection_failed_authentication_delay_ms": 0,
    }
    with served(Path(store.path), **settings) as server:
        ports = {each.name: each.port for each in server.server.endpoints}
        mine = {"sasl.username": "ali=ce,", "sasl.password": SECRET}
        tls = {
            "ssl.ca.location": str(authority.path),
            "ssl.certificate.location": str(authority.client("spark")),
        }
        for mechanism in MECHANISMS:
            login = {**mine, "sasl.mechanism": mechanism}
            plain = {"server": f"127.0.0.1:{ports['SASL_PLAINTEXT']}", "security.protocol": "SASL_PLAINTEXT", **login}
            assert names_at(plain) == ["orders"]
            both = {"server": f"localhost:{ports['SASL_SSL']}", "security.protocol": "sasl_ssl", **login, **tls}
            assert names_at(both) == ["orders"]
            with pytest.raises(StoreError, match="the login failed") as failed:
                names_at({**plain, "sasl.password": "guess"})
            assert "guess" not in str(failed.value)
        only_tls = {"server": f"localhost:{ports['SSL']}", "security.protocol": "SSL", **tls}
        assert names_at(only_tls) == ["orders"]
        with pytest.raises(StoreError, match=r"TLS handshake failed.*ssl\.ca\.location"):
            names_at({**only_tls, "ssl.ca.location": str(stranger.path)})
        without = {name: value for name, value in only_tls.items() if name != "ssl.certificate.location"}
        with pytest.raises(StoreError, match=r"ssl\.certificate\.location"):
            names_at(without)
        with pytest.raises(InvalidSetting, match=r"ssl\.ca\.location: /nowhere\.pem: No such file"):
            names_at({**only_tls, "ssl.ca.location": "/nowhere.pem"})


def test_a_login_is_renewed_before_it_ends(store: klamm.Store) -> None:
    store.topics.create("orders")
    Users(store._acquired().catalog).add("alice", SECRET)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": "PLAIN",
        "connections_max_reauth_ms": 3_600_000,
    }
    with served(Path(store.path), **settings) as server:
        client = Client(
            ServerAddress.parse(
                {
                    "server": f"127.0.0.1:{server.server.endpoints[0].port}",
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "alice",
                    "sasl.password": SECRET,
                }
            )
        )
        client.topics()
        (first,) = client._connections.values()
        assert first._ends_s is not None
        first._ends_s -= 3600
        client.topics()
        (second,) = client._connections.values()
        assert second is not first and not second.is_due
        client.close()


@pytest.mark.parametrize("mechanism", MECHANISMS[:2])
def test_scram_proves_the_password_to_the_server_and_the_servers_knowledge_to_the_client(mechanism: str) -> None:
    credential = derive(mechanism, SECRET, iterations=4096)
    server, client = ScramExchange(mechanism), ScramClient(mechanism, "a,=b", SECRET)
    assert server.begin(client.first()) == "a,=b"
    signature = server.finish(client.final(server.challenge(credential)))
    assert signature is not None
    client.check(signature)
    with pytest.raises(BadServer, match="does not know the password"):
        client.check(b"v=" + b"A" * 43 + b"=")
    for challenge in (b"", b"r=other,s=AAAA,i=4096", b"r=x", client._nonce):
        with pytest.raises(BadServer):
            client.final(challenge)
    for iterations in (b"0", b"99999999999", b"many"):
        with pytest.raises(BadServer):
            client.final(b"r=%bmore,s=AAAA,i=%b" % (client._nonce, iterations))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"server": ""}, "server: is empty"),
        ({"server": "host"}, "server: 'host' is invalid.*host:9092"),
        ({"server": "host:0"}, "is invalid"),
        ({"server": "host:99999"}, "is invalid"),
        ({"server": "h:1", "security.protocol": "TLS"}, "security.protocol: 'TLS' is invalid.*SASL_SSL"),
        ({"server": "h:1", "sasl.username": "u"}, "sasl.username: is not for security.protocol=PLAINTEXT"),
        ({"server": "h:1", "ssl.ca.location": "f"}, "ssl.ca.location: is not for security.protocol=PLAINTEXT"),
        ({"server": "h:1", "security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism: is missing"),
        (
            {"server": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "sasl.password: is missing",
        ),
        ({"server": "h:1", "security.protocol": "SSL", "ssl.key.location": "k"}, "has no certificate"),
        ({"server": "h:1", "security.protocol": "SSL", "ssl.key.password": "k"}, "has no certificate"),
        (
            {"server": "h:1", "security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ftp"},
            "expected https or none",
        ),
    ],
)
def test_an_address_that_does_not_fit_is_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidSetting, match=sentence):
        ServerAddress.parse(options)


def test_an_address_goes_to_tasks_and_shows_no_password() -> None:
    address = ServerAddress.parse(
        {
            "server": "one:9092, [::1]:9093",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "scram-sha-256",
            "sasl.username": "alice",
            "sasl.password": SECRET,
        }
    )
    assert address.hosts == (("one", 9092), ("::1", 9093)) and str(address) == "klamm://one:9092,[::1]:9093"
    assert pickle.loads(pickle.dumps(address)) == address
    assert SECRET not in repr(address)


def test_a_server_that_is_not_there_is_tried_and_then_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_TIMEOUT_S", 0.0)
    with pytest.raises(Unreachable, match=r"klamm://127\.0\.0\.1:\d+: .*refused.*check that the server runs"):
        Client(ServerAddress.parse({"server": f"127.0.0.1:{free_port()}"})).topics()
    with socket.socket() as deaf:  # it takes connections, and says nothing but goodbye
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        deaf.shutdown(socket.SHUT_RD)
        with pytest.raises(Unreachable, match=r"security\.protocol"):
            Client(ServerAddress.parse({"server": f"127.0.0.1:{deaf.getsockname()[1]}"})).topics()


def test_a_response_that_is_no_response_is_an_error_and_its_connection_is_not_used_again(store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    with klamm.server(store) as address:
        client = Client(ServerAddress.parse({"server": address}))
        client.topics()
        (broken,) = client._connections.values()
        ours, theirs = socket.socketpair()
        broken._socket.close()
        broken._socket = ours
        theirs.sendall((-1).to_bytes(4, signed=True))
        with pytest.raises(StoreError, match="the response is malformed: "):
            client.topics()
        theirs.close()
        assert list(client.topics()) == ["orders"] and broken not in client._connections.values()
        client.close()


def test_a_request_of_many_parts_and_larger_than_the_sockets_buffers_is_sent_whole(store: klamm.Store) -> None:
    parts = [bytes([number % 256]) * (number % 3) for number in range(5000)] + [bytes(4 << 20), b"end"]
    received = bytearray()
    with klamm.server(store) as address:
        server = ServerAddress.parse({"server": address})
        connection = Connection(server, *server.hosts[0])
        ours, theirs = socket.socketpair()
        connection._socket.close()
        connection._socket = ours

        def receive() -> None:
            while more := theirs.recv(1 << 16):
                received.extend(more)

        reader = threading.Thread(target=receive)
        reader.start()
        connection._write(parts)
        connection.close()
        reader.join(60)
        theirs.close()
    assert received == b"".join(parts)


def test_the_second_address_serves_if_the_first_is_not_there(store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    with klamm.server(store) as address:
        client = Client(ServerAddress.parse({"server": f"127.0.0.1:{free_port()},{address}"}))
        tps = [TopicPartition("orders", number) for number in range(2)]
        assert {found.offset for found in client.offsets(dict.fromkeys(tps, LATEST), committed=True).values()} == {0}
        with pytest.raises(UnknownTopic, match="orders/7"):
            client.offsets({TopicPartition("orders", 7): LATEST}, committed=True)
        client.close()
