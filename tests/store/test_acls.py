"""ACLs in klamm.db: what is written, who is told, what damage does."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from klamm.errors import InvalidSetting, NotAStore
from klamm.store.acl import AclFilter, Operation, Permission
from klamm.store.acls import Acls
from klamm.store.features import ACLS, Features
from tests.store.test_acl_index import rule


@pytest.fixture
def acls(store: klamm.Store) -> Acls:
    return Acls(store._acquired().catalog)


def test_acls_are_added_once_and_removed_by_filters(acls: Acls) -> None:
    one, other, third = rule("READ a"), rule("WRITE a", user="User:bob"), rule("READ b…", permission=Permission.DENY)
    assert acls.all() == [] and acls.version() == 0
    assert acls.remove([AclFilter()]) == [[]]
    assert (acls.add([one, one, other]), acls.add([one, third]), acls.add([one])) == (2, 1, 0)
    assert acls.all() == [one, other, third]
    assert acls.find(AclFilter(principal="User:alice")) == [one, third]
    assert acls.remove([AclFilter(operation=Operation.READ), AclFilter(resource_name="a")]) == [
        [one, third],
        [one, other],
    ]
    assert acls.all() == []


def test_one_that_cannot_be_keeps_all_of_its_call_out(acls: Acls) -> None:
    with pytest.raises(InvalidSetting):
        acls.add([rule("READ a"), rule("READ ")])
    assert acls.all() == []


def test_other_processes_are_told_of_each_change_and_of_nothing_else(store: klamm.Store, acls: Acls) -> None:
    """ACL1: as of a change of the catalog."""
    heads = store._acquired().heads
    seen = [(heads.catalog_version, acls.version())]
    for change in (lambda: acls.add([rule("READ a")]), lambda: acls.remove([AclFilter()])):
        change()
        seen.append((heads.catalog_version, acls.version()))
        assert seen[-1][0] > seen[-2][0] and seen[-1][1] > seen[-2][1]
    acls.add([])
    acls.remove([AclFilter()])
    assert (heads.catalog_version, acls.version()) == seen[-1]
    store.topics.create("orders")
    assert acls.version() == seen[-1][1]


def test_a_store_with_acls_has_the_feature_and_one_without_has_not(path: Path, acls: Acls, store: klamm.Store) -> None:
    catalog = store._acquired().catalog

    def features() -> Features:
        with catalog.database.reading() as execute:
            return Features.parse(str(catalog.meta(execute, "features")))

    assert not features().compatible & ACLS
    acls.add([rule("READ a")])
    assert features().compatible & ACLS
    with klamm.open(path, read_only=True) as other:
        assert Acls(other._acquired().catalog).all() == [rule("READ a")]


def test_a_damaged_acl_is_an_error_and_is_found(path: Path, acls: Acls, store: klamm.Store) -> None:
    """ACL2"""
    acls.add([rule("READ a", permission=Permission.DENY), rule("WRITE a")])
    assert store.check().ok
    database = store._acquired().catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE acls SET permission = 'ALLOW'")
    with pytest.raises(NotAStore, match="the ACL of 'User:alice' for 'a' is damaged"):
        acls.all()
    report = store.check()
    assert [breach.promise for breach in report.breaches] == ["ACL2: ACLs are as they were written"]
