"""Quotas in klamm.db."""

from __future__ import annotations

import pytest

import klamm
from klamm.errors import InvalidSetting, NotAStore
from klamm.store.features import QUOTAS, Features
from klamm.store.quotas import Quotas, make_entity

ALICE = make_entity([("user", "alice")])
BOTH = make_entity([("user", None), ("client-id", "app")])


@pytest.fixture
def quotas(store: klamm.Store) -> Quotas:
    return Quotas(store._acquired().catalog)


def test_quotas_are_there_after_the_store_was_opened_again(store: klamm.Store, quotas: Quotas) -> None:
    assert quotas.all() == {}
    quotas.alter([(ALICE, {"producer_byte_rate": 1000, "request_percentage": 0.5}), (BOTH, {"consumer_byte_rate": 7})])
    quotas.alter([(ALICE, {"producer_byte_rate": None, "consumer_byte_rate": 9})])
    store.close()
    with klamm.open(store.path, create=False) as again:
        catalog = again._acquired().catalog
        assert Quotas(catalog).all() == {
            ALICE: {"consumer_byte_rate": 9, "request_percentage": 0.5},
            BOTH: {"consumer_byte_rate": 7},
        }
        with catalog.database.reading() as execute:
            assert Features.parse(str(catalog.meta(execute, "features"))).compatible & QUOTAS


def test_of_a_call_with_a_wrong_quota_nothing_is_written(quotas: Quotas) -> None:
    with pytest.raises(InvalidSetting, match="must be greater than 0"):
        quotas.alter([(ALICE, {"producer_byte_rate": 1}), (BOTH, {"consumer_byte_rate": -1})])
    assert quotas.all() == {}


@pytest.mark.parametrize("value", [1e-323, 9e-7])
def test_a_rate_by_which_a_debt_would_last_forever_is_refused(quotas: Quotas, value: float) -> None:
    for name in ("request_percentage", "producer_byte_rate", "controller_mutation_rate"):
        with pytest.raises(InvalidSetting, match=r"must be 1e-06 or more"):
            quotas.alter([(ALICE, {name: value})])


def test_a_row_that_was_changed_by_others_is_an_error_and_is_found(store: klamm.Store, quotas: Quotas) -> None:
    quotas.alter([(ALICE, {"producer_byte_rate": 1000})])
    database = store._acquired().catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE client_quotas SET value = 10000")
    with pytest.raises(NotAStore, match="damaged"):
        quotas.all()
    assert any("QTA2" in breach.promise for breach in store.check().breaches)


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_an_address_is_that_of_a_connection(address: str) -> None:
    assert make_entity([("ip", address)]) == (("ip", "127.0.0.1"),)
