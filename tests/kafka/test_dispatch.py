"""The dispatch table says where each request runs, and it is true.

The source of the handlers is read: from the handler of a row, every function of its module that it calls on the loop is
followed. Functions that are given to threads are not: they may block. Two things hold: the threads that are reached are
those of the row's `runs`; and nothing that may block is called on the way.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator

import pytest

from klamm.kafka.apis import TABLE
from klamm.kafka.apis.cluster import api_versions
from klamm.kafka.call import (
    ADMIN,
    AUTHENTICATE,
    CATALOG,
    CODEC,
    DISK,
    LARGE,
    LOOP,
    TRANSACT,
    WRITE,
    ExecutionContext,
    SupportedApi,
)
from klamm.kafka.wire.messages import API_VERSIONS
from tests.kafka.connect import Served

# What a handler can call to have something done elsewhere, and where that is.
REACHES: dict[str, tuple[ExecutionContext, ...]] = {
    "broker.catalog": (CATALOG,),
    "broker.disk": (DISK,),
    "broker.codec": (CODEC,),
    "broker.write": (WRITE,),
    "broker.transact": (TRANSACT,),
    "broker.apply": (TRANSACT,),
    "broker.administer": (ADMIN,),
    "broker.reload_quotas": (CATALOG,),
    "broker.authenticate": (AUTHENTICATE,),
    "login.step": (AUTHENTICATE,),
    "broker.delete": (DISK,),
    "broker.opened": (DISK,),
    "broker.flush_soon": (DISK,),
    "broker.partition_executors.run": (DISK,),
    "broker.sync_queue.wait": (DISK,),
    "broker.topics.create": (CATALOG, ADMIN),
    "broker.topics.refresh": (CATALOG,),
    "broker.group_store.write": (WRITE,),
    "broker.group_store.commit": (WRITE,),
    "broker.group_store.offsets": (CATALOG, WRITE),
    "broker.group_store.admit": (CATALOG, WRITE),
    "broker.transaction_coordinator.register_produce": (TRANSACT,),
    "checked_commit": (CATALOG,),
}

# Methods that take locks, read SQLite, or wait for a disk.
MAY_BLOCK = {
    *("append", "sync", "delete_before", "first_since", "youngest", "producers", "bytes_in", "disk_usage"),
    *(
        "settings",
        "all_topics",
        "create_topic",
        "alter",
        "alter_settings",
        "add_partitions",
        "check_new",
        "delete_topic",
    ),
    *("delete_topic", "claim_door", "reserve_generations", "init_producer_id", "add_group", "end", "commit_offsets"),
}
OPEN_TO_ALL = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster", "ConsumerGroupHeartbeat"}
OF = {"broker", "core", "catalog", "partition", "lookup", "segment", "shutil"}


def chain(node: ast.expr) -> str:
    """`self.broker.topics.create` as "broker.topics.create"."""
    if isinstance(node, ast.Attribute):
        return f"{chain(node.value)}.{node.attr}".removeprefix("self.")
    return node.id if isinstance(node, ast.Name) else ""


class Handlers:
    """The functions of one module, by name; methods, too."""

    def __init__(self, module: str) -> None:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    def on_loop(self, name: str) -> Iterator[tuple[str, ast.Call]]:
        """The calls that the function makes on the loop, itself or through other functions of the module."""
        seen, left = {name}, [name]
        while left:
            current = left.pop()
            nodes = list(own_nodes(self.functions[current]))
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            in_threads = {
                part for call in calls if chain(call.func) in REACHES for each in call.args for part in ast.walk(each)
            }
            for call in calls:
                yield current, call
            for node in nodes:
                called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                if called in self.functions and called not in seen and node not in in_threads:
                    seen.add(called)
                    left.append(called)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, without the functions in it: those run where they are called."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own_nodes(node)


def names(row: SupportedApi) -> tuple[Handlers, str]:
    function = row.handler
    return Handlers(function.__module__), function.__name__


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.api.name)
def test_a_request_runs_where_its_row_says(row: SupportedApi) -> None:
    handlers, name = names(row)
    reached = {LOOP}
    for _, call in handlers.on_loop(name):
        reached |= set(REACHES.get(chain(call.func), ()))
    assert reached == {LOOP, *row.runs}


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.api.name)
def test_nothing_that_may_block_is_called_on_the_loop(row: SupportedApi) -> None:
    handlers, name = names(row)
    for function, call in handlers.on_loop(name):
        words = chain(call.func).split(".")
        blocks = words[0] in OF and words[-1] in MAY_BLOCK and "group_coordinator" not in words  # memory only
        assert not blocks, f"{function}: {chain(call.func)} on the loop"


@pytest.mark.parametrize("row", [row for row in TABLE.values() if row.ordinary], ids=lambda row: row.api.name)
def test_an_ordinary_request_runs_on_the_loop_and_reaches_no_thread_that_its_row_lacks(row: SupportedApi) -> None:
    assert row.ordinary is not None
    handlers = Handlers(row.ordinary.__module__)
    reached = set()
    for function, call in handlers.on_loop(row.ordinary.__name__):
        words = chain(call.func).split(".")
        assert not (words[0] in OF and words[-1] in MAY_BLOCK), f"{function}: {chain(call.func)} on the loop"
        reached |= set(REACHES.get(chain(call.func), ()))
    assert reached <= set(row.runs)


def test_the_table_of_a_server_is_its_own(server: Served) -> None:
    """A test that replaced a handler did so for all servers of its process, and later tests took minutes."""
    table = server.server.listener.admission.table
    table.pop(API_VERSIONS.key)
    assert TABLE[API_VERSIONS.key].handler is api_versions


def test_every_handler_responds_in_the_same_way() -> None:
    """It is a coroutine function, and its result is the response."""
    assert [row.api.name for row in TABLE.values() if not inspect.iscoroutinefunction(row.handler)] == []


def test_every_row_bounds_its_response_and_names_its_rights() -> None:
    for row in TABLE.values():
        assert 0 < row.max_response_bytes <= LARGE
        assert row.rights or row.api.name in OPEN_TO_ALL, "all others are for those who may"
        for right in row.rights:
            operation, resource = right.split()
            assert operation in {"Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs",
                                 "AlterConfigs", "IdempotentWrite", "ClusterAction", "TwoPhaseCommit"}  # fmt: skip
            assert resource in {"Topic", "Group", "Cluster", "TransactionalId"}
