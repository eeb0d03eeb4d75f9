"""Copies by a user who has the rights that docs/guide/copying.md asks for, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import klamm
from klamm.errors import StoreError
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.store.acl import Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.users import Users
from tests.serving import serving
from tests.transfer.conftest import contents, contents_at

SETTINGS = [
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=PLAIN",
    f"authorizer.class.name={STANDARD_AUTHORIZER}",
]
FROM = {"topic": ["READ", "DESCRIBE_CONFIGS"], "group": ["READ"]}
TO = {"topic": ["READ", "WRITE", "CREATE"], "copies": ["READ", "WRITE", "CREATE"], "id": ["WRITE"], "group": ["READ"]}
RESOURCES = {
    "topic": (ResourceType.TOPIC, "orders", PatternType.LITERAL),
    "copies": (ResourceType.TOPIC, "klamm-copies", PatternType.LITERAL),
    "id": (ResourceType.TRANSACTIONAL_ID, "klamm-copy-", PatternType.PREFIXED),
    "group": (ResourceType.GROUP, "billing", PatternType.LITERAL),
}


def grant(store: klamm.Store, rights: dict[str, list[str]]) -> None:
    acls = [
        Acl(*RESOURCES[what], "User:alice", "*", Operation[operation], Permission.ALLOW)
        for what, operations in rights.items()
        for operation in operations
    ]
    Acls(store._acquired().catalog).add(acls)


@contextmanager
def guarded(path: Path) -> Iterator[str]:
    """The address of a server on the store, with the login of alice."""
    with klamm.open(path) as store:
        Users(store._acquired().catalog).add("alice", "wonderland")
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with serving(path, "--config", "/dev/null", *options) as server:
        server.ready()
        login = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=alice&sasl.password=wonderland"
        yield f"kafka://{server.address.rpartition('//')[2]}?{login}"


def test_a_copy_needs_the_rights_that_the_guide_names(source: klamm.Store, tmp_path: Path) -> None:
    target, back = tmp_path / "target", tmp_path / "back"
    with guarded(target) as address, klamm.open(target) as there:
        grant(there, TO)
        report = klamm.copy(source, address, topics="orders")
        assert report.groups == ["billing"]
        there.topics.create("secrets").append(b"secret")
        with pytest.raises(StoreError):
            klamm.copy(address, back)
        grant(there, FROM)
        assert klamm.copy(source, address, topics="orders").offsets == 0
        assert klamm.copy(address, back, topics="orders").groups == ["billing"]
        assert contents_at(back) == contents(there)
        assert contents(there, with_offsets=False) == contents(source, with_offsets=False)
