"""An address with a login: options of librdkafka over TLS, and a password with every sign that an address has."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import klamm
from klamm.cli.main import run
from klamm.errors import StoreError
from klamm.store.users import Users
from tests.kafka.authorities import Authority
from tests.serving import Serving, serving

PASSWORD = "a+b&c=d %25?"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("guarded") / "store"
    with klamm.open(path) as store:
        Users(store._acquired().catalog).add("alice", PASSWORD)
    settings = [
        "listeners=SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        f"ssl.keystore.location={authority.path.with_name('server.pem')}",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(path, "--config", "/dev/null", *options) as server:
        server.ready()
        yield server
        server.check_log()


def address_of(server: Serving, authority: Authority, password: str = PASSWORD) -> str:
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.path),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": password,
    }
    port = server.address.rpartition(":")[2]
    return f"kafka://localhost:{port}?{urlencode(options, quote_via=quote)}"


def test_a_store_with_a_login_does_what_others_do(
    guarded: Serving, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = address_of(guarded, authority)
    with klamm.open(address) as store:
        topic = store.topics.create("orders", 2)
        topic.append(b"1", key=b"k")
        with store.transaction() as tx:
            tx.send("orders", b"2", key=b"k")
        with store.consumer("orders", group="billing", wait=0) as consumer:
            assert [record.value for record in consumer] == [b"1", b"2"]
            consumer.commit()
        assert store.groups.describe("billing").lag == 0
        assert "alice" not in store.path and "alice" not in repr(store)
        with pickle.loads(pickle.dumps(store)) as again:
            assert "orders" in again
    assert klamm.copy(address, tmp_path / "copied").groups == ["billing"]
    assert run(["tail", "orders", "--store", address]) == 0
    assert run(["topic", "show", "nothing", "--store", address]) == 1
    out, err = capsys.readouterr()
    assert "alice" not in out + err and len(out.splitlines()) == 2


def test_a_wrong_password_is_the_error(guarded: Serving, authority: Authority) -> None:
    with pytest.raises(StoreError, match=r"kafka://localhost:\d+: .*[Aa]uthentication") as raised:
        klamm.open(address_of(guarded, authority, "wrong"))
    assert "wrong" not in str(raised.value) and raised.value.hint and "sasl" in raised.value.hint
