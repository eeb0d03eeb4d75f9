"""Users of a store: what is stored of a password, and who notices."""

from __future__ import annotations

import hashlib
import hmac
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, NotAStore
from klamm.store import users as users_module
from klamm.store.features import USERS, Features
from klamm.store.scram import MECHANISMS, Credential, derive
from klamm.store.users import Users


@pytest.fixture
def users(store: klamm.Store) -> Users:
    return Users(store._acquired().catalog)


def test_keys_are_those_of_the_rfc() -> None:
    """The example of RFC 7677: its proof and signature, out of user, pencil and the salt there."""
    import base64

    credential = derive("SCRAM-SHA-256", "pencil", iterations=4096, salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    auth = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert credential.proves(proof, auth)
    assert base64.b64encode(credential.sign(auth)) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert not credential.proves(bytes(32), auth) and not credential.proves(b"", auth)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_password_fits_its_credential_and_no_other_does(mechanism: str) -> None:
    credential = derive(mechanism, "wonderland")
    assert credential.fits("wonderland")
    assert not any(credential.fits(other) for other in ("Wonderland", "wonderland ", "", "größe"))
    assert derive(mechanism, "wonderland").salt != credential.salt


def test_no_password_and_no_salted_password_is_in_any_file(path: str, store: klamm.Store, users: Users) -> None:
    users.add("alice", "correct horse battery staple")
    (credential,) = [users.find("alice")["SCRAM-SHA-256"]]
    salted = hashlib.pbkdf2_hmac("sha256", b"correct horse battery staple", credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    content = b"".join(file.read_bytes() for file in Path(path).rglob("*") if file.is_file())
    assert credential.stored_key in content  # so it would be found
    assert b"battery staple" not in content and salted not in content and client_key not in content
    assert "staple" not in repr(credential) and repr(credential.stored_key) not in repr(credential)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_password_that_is_set_while_the_user_changes_is_that_of_the_user_as_it_is(
    path: str, users: Users, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """Derived before the lock is taken: one that was removed meanwhile stays removed, no mechanism has an old one."""
    users.add("alice", "old", ["SCRAM-SHA-256"])
    changes: list[Any] = [partial(users.alter, [("alice", "SCRAM-SHA-256")], [])]
    if not is_removed:
        changes = [partial(users.alter, [], [("alice", derive("SCRAM-SHA-512", "old", iterations=4096))])]

    def derived(mechanism: str, password: str, **options: Any) -> Credential:
        while changes:
            changes.pop()()
        return derive(mechanism, password, **options)

    monkeypatch.setattr(users_module, "derive", derived)
    if is_removed:
        with pytest.raises(InvalidSetting, match="there is no user 'alice'"):
            users.set_password("alice", "new")
        assert users.find("alice") == {}
    else:
        users.set_password("alice", "new")
        found = users.find("alice")
        assert set(found) == set(MECHANISMS) and all(each.fits("new") for each in found.values())


def test_users_are_there_for_every_process_that_opens_the_store(path: str, users: Users) -> None:
    users.add("alice", "a")
    users.add("bob", "b", ["SCRAM-SHA-512"])
    with klamm.open(path, read_only=True) as other:
        listed = Users(other._acquired().catalog).all()
    assert [(user.name, [name for name, _ in user.mechanisms]) for user in listed] == [
        ("alice", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
        ("bob", ["SCRAM-SHA-512"]),
    ]
    users.remove("alice")
    assert [user.name for user in users.all()] == ["bob"]


def test_a_password_is_changed_for_the_mechanisms_that_a_user_has(users: Users) -> None:
    users.add("bob", "b", ["SCRAM-SHA-512"])
    users.set_password("bob", "c")
    (credential,) = users.find("bob").values()
    assert credential.mechanism == "SCRAM-SHA-512" and credential.fits("c")


def test_names_and_passwords_that_do_not_fit_are_refused(users: Users) -> None:
    users.add("alice", "a")
    for name in ("", "x" * 256, "new\nline", "zero\0"):
        with pytest.raises(InvalidSetting, match="user"):
            users.add(name, "a")
    for password in ("", "x" * 1025, "zero\0"):
        with pytest.raises(InvalidSetting, match="password: invalid") as refused:
            users.add("carol", password)
        assert not password or password not in str(refused.value)
    with pytest.raises(InvalidSetting, match="already"):
        users.add("alice", "a")
    for change in (lambda: users.remove("carol"), lambda: users.set_password("carol", "c")):
        with pytest.raises(InvalidSetting, match="no user 'carol'"):
            change()


def test_a_store_without_users_has_no_table_and_no_feature(path: str, store: klamm.Store, users: Users) -> None:
    catalog = store._acquired().catalog

    def features() -> Features:
        with catalog.database.reading() as execute:
            return Features.parse(str(catalog.meta(execute, "features")))

    assert users.all() == [] and users.find("alice") == {}
    assert features() == Features()
    users.add("alice", "a")
    assert features() == Features(compatible=USERS)
    assert klamm.check(path).ok


def test_a_damaged_credential_lets_no_one_in_and_is_found(path: str, store: klamm.Store, users: Users) -> None:
    users.add("alice", "a")
    database = store._acquired().catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE scram_credentials SET iterations = 1 WHERE mechanism = 'SCRAM-SHA-256'")
    with pytest.raises(NotAStore, match="credential of 'alice' is damaged"):
        users.find("alice")
    assert any("USR3" in breach.promise for breach in klamm.check(path).breaches)


def test_a_backup_has_the_users(path: str, tmp_path: Path, store: klamm.Store, users: Users) -> None:
    users.add("alice", "a")
    store.backup(tmp_path / "copy")
    with klamm.open(tmp_path / "copy") as copy:
        assert Users(copy._acquired().catalog).find("alice")["SCRAM-SHA-512"].fits("a")
