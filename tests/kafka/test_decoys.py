"""Users that do not exist: a stranger who tries names is challenged as if they did."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

import klamm
from klamm.kafka.security.decoys import ANY, Decoys
from klamm.kafka.security.scram import BadExchange, ScramExchange, parse_plain
from klamm.store.scram import Credential, derive
from klamm.store.users import Users
from tests.kafka.connect import Served, served
from tests.kafka.sasl_client import authenticate, choose

LISTENERS = "SASL_PLAINTEXT://127.0.0.1:0"
Shape = tuple[int, int, bool]


@pytest.fixture
def users(store: klamm.Store) -> Users:
    """One user in four is made as kafka-configs makes them: 4096 iterations, letters as the salt."""
    users = Users(store._acquired().catalog)
    for number in range(4):
        name = f"user{number}"
        if number:
            users.alter([], [(name, derive(mechanism, "x", salt=bytes(range(20)))) for mechanism in MECHANISMS])
        else:
            salt = b"5s0mdgbcs7hbqkqhs6v3ltbfk8"
            made = [(name, derive(mechanism, "x", iterations=4096, salt=salt)) for mechanism in MECHANISMS]
            users.alter([], made)
    return users


MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def shape(credential: Credential) -> Shape:
    return credential.iterations, len(credential.salt), credential.salt.isalnum()


@pytest.mark.parametrize("mechanism", [*MECHANISMS, ANY])
def test_a_decoy_looks_like_the_credentials_that_there_are(users: Users, mechanism: str) -> None:
    """LOG3: neither iterations nor salt tell whether there is a user of that name."""
    decoys = Decoys(users)
    decoys.find("nobody")
    found = [decoys.decoy(f"nobody{number}", mechanism) for number in range(400)]
    shapes = Counter(map(shape, found))
    assert set(shapes) == {(4096, 26, True), (16384, 20, False)}
    assert 60 < shapes[4096, 26, True] < 140, "one in four"
    assert {each.mechanism for each in found} == {mechanism or "SCRAM-SHA-512"}
    assert len({each.salt for each in found}) == 400


def challenges(server: Served, mechanism: str) -> dict[str, bytes]:
    found = {}
    for name in ("user0", "user1", "nobody1", "nobody2", "nobody3", "nobody4"):
        with server.dial() as raw:
            choose(raw, mechanism)
            challenge = bytes(authenticate(raw, b"n,,n=%b,r=nonce" % name.encode()).auth_bytes)
            found[name] = challenge.partition(b",")[2]
    return found


def test_a_stranger_is_challenged_as_before_when_the_server_was_restarted(store: klamm.Store, users: Users) -> None:
    """Who asks before and after would know the users: their salts stay."""
    asked = []
    for _ in range(2):
        with served(Path(store.path), listeners=LISTENERS) as server:
            asked.append(challenges(server, "SCRAM-SHA-512"))
    assert asked[0] == asked[1]
    assert len(set(asked[0].values())) == 6


def test_a_store_without_users_has_no_secret_and_decoys_all_the_same(store: klamm.Store) -> None:
    decoys = Decoys(Users(store._acquired().catalog))
    assert decoys.find("nobody") == {}
    decoy = decoys.decoy("nobody", "SCRAM-SHA-256")
    assert shape(decoy)[:2] == (16384, 20) and decoy == decoy._replace(
        salt=decoys.decoy("nobody", "SCRAM-SHA-256").salt
    )
    assert not decoy.fits("") and len(decoy.stored_key) == hashlib.sha256().digest_size


@pytest.mark.parametrize("message", [b"n,,n=a,r=b" + b"," * 60_000, b"n,,n=a,r=b" + b",x=y" * 20])
def test_a_first_message_of_many_fields_is_not_taken_apart(message: bytes) -> None:
    """64 KiB of commas, on the loop, before the login."""
    with pytest.raises(BadExchange, match="too many fields"):
        ScramExchange("SCRAM-SHA-256").begin(message)


def test_a_message_of_zero_bytes_is_not_one_of_plain() -> None:
    with pytest.raises(BadExchange, match="three parts"):
        parse_plain(bytes(60_000))
