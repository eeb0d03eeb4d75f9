"""`klamm serve`: a process that starts, says so, serves, and ends as it is told."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import klamm
from klamm.cli.main import run
from klamm.cli.serve import SettingSource, _from_file, _from_sets, _settings, _Signals
from klamm.errors import InvalidSetting
from klamm.kafka.settings import SERVER_SETTINGS, STANDARD_AUTHORIZER, ServerSettings
from tests.messages import value_of
from tests.procs import children, until
from tests.serving import KLAMM, Serving, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def server(path: Path) -> Iterator[Serving]:
    with serving(path) as started:
        yield started


def produce(address: str, values: list[bytes], topic: str = "orders", /, **settings: Any) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": address, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(20) == 0
    assert failed == []


def consume(address: str, count: int, topic: str = "orders") -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []

    def polled() -> bool:
        for message in consumer.consume(count, 0.2):
            assert message.error() is None, message.error()
            found.append(value_of(message))
        return len(found) >= count

    try:
        until(polled, f"{count} records come")
    finally:
        consumer.close()
    return found


def embedded(path: Path, topic: str = "orders") -> list[bytes]:
    with klamm.open(path, create=False) as store, store.consumer(topic, wait=0, form="values") as consumer:
        return list(consumer)


def refused(*arguments: str | Path, code: int, **environment: str) -> str:
    """What a command that cannot work says: one line, no traceback, nothing on stdout."""
    done = subprocess.run(
        [KLAMM, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("klamm: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# Serving


def test_what_clients_send_is_read_by_clients_and_by_embedded_processes(server: Serving, path: Path) -> None:
    values = [b"%d" % n for n in range(1000)]
    produce(server.address, values)
    assert consume(server.address, 1000) == values
    assert embedded(path) == values


def test_what_an_embedded_process_appends_reaches_clients(server: Serving, path: Path) -> None:
    server.ready()
    with klamm.open(path, create=False) as store:
        store.topics.create("orders")
        store.append_many("orders", [(None, b"a"), (None, b"b")])
        assert consume(server.address, 2) == [b"a", b"b"]


def test_the_ready_line_is_all_of_stdout_and_tells_path_port_and_store(server: Serving, path: Path) -> None:
    ready = server.ready()
    host, _, port = ready["address"].rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    assert ready["path"] == f"{path}/" and ready["metrics"] is None
    produce(server.address, [b"a"])
    assert server.stop() == 0
    assert server.stdout.count("\n") == 1
    with klamm.open(path, create=False) as store:
        assert store.store_id == ready["store"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_0_and_no_record_is_lost(path: Path, number: int) -> None:
    with serving(path) as server:
        values = [b"%d" % n for n in range(500)]
        produce(server.address, values, acks="all")
        assert server.stop(number) == 0
        assert "Traceback" not in server.stderr and "stopped" in server.stderr
    assert embedded(path) == values


def test_a_signal_amid_producing_loses_nothing_that_was_acknowledged(path: Path) -> None:
    acknowledged: list[bytes] = []

    def on_delivery(error: object, message: object) -> None:
        if error is None:
            acknowledged.append(message.value())  # type: ignore[attr-defined]

    with serving(path) as server:
        settings = {"bootstrap.servers": server.address, "linger.ms": 0}
        producer = Producer({**settings, "logger": None, "log_level": 0, "enable.idempotence": True})
        sent = 0

        def enough() -> bool:
            nonlocal sent
            producer.produce("orders", b"%d" % sent, on_delivery=on_delivery)
            sent += 1
            producer.poll(0)
            return len(acknowledged) > 200

        until(enough, "200 records are acknowledged")
        server.process.send_signal(signal.SIGTERM)
        for n in range(sent, sent + 500):
            producer.produce("orders", b"%d" % n, on_delivery=on_delivery)
            producer.poll(0)
        assert server.ended() == 0
        producer.purge()
        producer.flush(10)
    found = embedded(path)
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


def test_a_killed_server_loses_nothing_and_the_next_one_goes_on(path: Path) -> None:
    values = [b"%d" % n for n in range(100)]
    with serving(path) as server:
        produce(server.address, values, acks="all")
        server.process.kill()
        assert server.ended() == -signal.SIGKILL
    with serving(path, where=path.parent / "second") as server:
        assert consume(server.address, 100) == values


def test_the_second_signal_ends_it_at_once() -> None:
    def twice() -> None:
        with _Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals._signal == "SIGTERM"
            os.kill(os.getpid(), signal.SIGINT)

    with children() as start:
        assert os.waitstatus_to_exitcode(start(twice).ended()) == 128 + signal.SIGINT


def test_a_signal_before_the_loop_runs_is_not_forgotten(path: Path) -> None:
    import asyncio

    def early() -> str:
        with _Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            return asyncio.run(asyncio.wait_for(signals.wait(), 10))

    with children() as start:
        assert start(early).answer() == "SIGTERM"


def test_signals_are_handled_as_before_when_it_ends(tmp_path: Path) -> None:
    """Also where it could not start: a program that has called it is interrupted by Ctrl-C, as before."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    (tmp_path / "file").touch()
    assert run(["serve", str(tmp_path / "file"), "--kafka", "0"]) == 1
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# Where it listens


def test_it_listens_on_ipv6_when_told_so(path: Path) -> None:
    with serving(path, "--host", "::1") as server:
        assert server.address.startswith("[::1]:")
        produce(server.address, [b"a", b"b"], **{"broker.address.family": "v6"})
        assert server.stop() == 0
    assert embedded(path) == [b"a", b"b"]


def test_it_listens_on_all_addresses_of_both_kinds_and_tells_each_client_what_it_dialled(path: Path) -> None:
    with serving(path, "--host", "::") as server:
        everywhere, port = server.address.rsplit(":", 1)
        assert everywhere == "[::]"
        for host, dialled, family in (("127.0.0.1", "127.0.0.1", "v4"), ("[::1]", "::1", "v6")):
            settings: dict[str, Any] = {"bootstrap.servers": f"{host}:{port}", "broker.address.family": family}
            brokers: dict[int, Any] = AdminClient(settings).list_topics(timeout=10).brokers
            assert [(each.host, each.port) for each in brokers.values()] == [(dialled, int(port))]
            produce(f"{host}:{port}", [host.encode()], **{"broker.address.family": family})
        assert server.stop() == 0
    assert embedded(path) == [b"127.0.0.1", b"[::1]"]


def test_nobody_but_this_machine_can_reach_it_unless_told_otherwise(server: Serving) -> None:
    port = f"{int(server.address.rpartition(':')[2]):04X}"
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]


def test_clients_are_told_what_advertise_and_node_id_say(path: Path) -> None:
    with serving(path, "--advertise", "kafka.example.com:19092", "--node-id", "7") as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        brokers: dict[int, Any] = admin.list_topics(timeout=10).brokers
        assert [(each.id, each.host, each.port) for each in brokers.values()] == [(7, "kafka.example.com", 19092)]


def test_without_advertise_clients_are_told_what_they_dialled(server: Serving) -> None:
    brokers = AdminClient({"bootstrap.servers": server.address}).list_topics(timeout=10).brokers
    assert [f"{each.host}:{each.port}" for each in brokers.values()] == [server.address]


def test_the_store_may_be_named_by_the_environment_and_a_new_one_is_told(path: Path, tmp_path: Path) -> None:
    told = refused("serve", code=2)
    assert "serve: missing PATH" in told
    command: list[str | Path] = [KLAMM, "serve", "--kafka", "0"]
    for new in ("new ", ""):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "KLAMM_STORE": str(path)}) as process:
            assert process.stdout is not None
            assert f" ({new}store ".encode() in process.stdout.readline()
            process.terminate()


def test_a_port_that_is_taken_is_one_line_and_1(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("serve", path, "--kafka", str(port), code=1)
        assert f"127.0.0.1:{port}: cannot listen" in told and "choose another port with --kafka" in told
        told = refused("serve", path, "--kafka", "0", "--metrics", str(port), code=1)
        assert f"127.0.0.1:{port}: cannot listen" in told and "metrics" in told


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines_is_one_line_and_1(path: Path, host: str) -> None:
    assert host in refused("serve", path, "--kafka", "0", "--host", host, code=1)


def test_a_second_server_is_told_who_the_first_is(server: Serving, path: Path) -> None:
    server.ready()
    told = refused("serve", path, "--kafka", "0", code=1)
    assert str(server.pid) in told and server.address in told
    assert server.stop() == 0
    with serving(path, where=path.parent / "second") as second:
        second.ready()


def test_what_is_no_store_is_one_line_and_1(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    assert "is a file" in refused("serve", file, "--kafka", "0", code=1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    assert "cat.jpg" in refused("serve", tmp_path / "photos", "--kafka", "0", code=1)


# Settings


def test_a_toml_file_sets_and_the_command_line_wins(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "klamm.toml"
    config.write_text('[serve]\nkafka = 1\nnode-id = 5\ndefault-partitions = 3\nlog-format = "json"\n')
    with serving(path, "--config", str(config), "--kafka", "0", "--set", "node_id=6") as server:
        told = AdminClient({"bootstrap.servers": server.address}).list_topics(timeout=10)
        assert list(told.brokers) == [6]
        produce(server.address, [b"a"])
        assert server.stop() == 0
        assert json.loads(server.stderr.splitlines()[0])["event"] == "listening"
    with klamm.open(path, create=False) as store:
        assert len(store.topics.describe("orders").partitions) == 3


def test_the_toml_file_may_be_named_by_the_environment(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "other.toml"
    config.write_text("[serve]\nkafka = 0\nauto.create.topics.enable = false\n")
    with serving(path, environment={"KLAMM_CONFIG": str(config)}) as server:
        producer = Producer({"bootstrap.servers": server.address, "message.timeout.ms": 1000, "log_level": 0})
        failed: list[object] = []
        producer.produce("orders", b"a", on_delivery=lambda error, _: failed.append(error))
        producer.flush(20)
        assert len(failed) == 1 and failed[0] is not None


def test_toml_takes_names_with_dots_quoted_and_plain(tmp_path: Path) -> None:
    config = tmp_path / "klamm.toml"
    config.write_text('[serve]\nconnections.max.idle.ms = 1000\n"max.connections" = 10\nnode_id = 4\nhost = "::1"\n')
    found = _settings(_from_file(config))
    assert found == ServerSettings(connections_max_idle_ms=1000, max_connections=10, node_id=4, host="::1")


LISTENERS = "listeners", "PLAINTEXT://127.0.0.1:1"
FITTING = {
    "control.request.max.bytes": "8388609",
    "node-id": "1800001",
    "group.max.session.timeout.ms": "1800001",
    "listeners": LISTENERS[1],
    "listener.security.protocol.map": "INSIDE:SASL_SSL",
    "metrics.security.protocol": "SASL_PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://example.com:99",
    "sasl.enabled.mechanisms": "PLAIN",
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L",
    "sasl.oauthbearer.algorithms": "RS256",
    "authorizer.class.name": STANDARD_AUTHORIZER,
}
"""Of settings where a value that is like any other is the default, less than a minimum, or does not fit."""
BEFORE = {"advertised.listeners": [LISTENERS], "request.log.size": [("metrics", "1")]}
"""Settings that others need beside them."""


@pytest.mark.parametrize("name", SERVER_SETTINGS)
def test_every_setting_can_be_set_by_name_and_by_toml(name: str, tmp_path: Path) -> None:
    row = SERVER_SETTINGS[name]
    other = "false" if row.default == "true" else "true"
    value = FITTING.get(name) or {"boolean": other, "string": "example.com:99"}.get(row.type, str(row.low + 1))
    before = BEFORE.get(name, [])
    found = _settings(_from_sets([f"{each}={given}" for each, given in [*before, (name, value)]]))
    assert found[name] == value and found != ServerSettings()
    config = tmp_path / "klamm.toml"
    lines = [f"{each} = {json.dumps(given)}\n" for each, given in before]
    lines.append(f"{name} = {value if row.type != 'string' else json.dumps(value)}\n")
    config.write_text(f"[serve]\n{''.join(lines)}")
    assert _settings(_from_file(config)) == found


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[serve]\nkafak = 1\n", "did you mean 'kafka'?"),
        ("[serve]\nlog-fromat = 'json'\n", "did you mean 'log-format'?"),
        ("[serve]\nkafka = 'many'\n", "expected a whole number"),
        ("[serve]\nkafka = [1, 2]\n", "is invalid"),
        ("[serve]\nhost = 1\n", "is invalid"),
        ("[serve]\nlog-format = 'xml'\n", "expected text or json"),
        ("kafka = 1\n", "go below [serve]"),
        ("[sevre]\nkafka = 1\n", "did you mean 'serve'?"),
        ("[serve\n", "is not TOML"),
        ("[serve]\ngroup.min.session.timeout.ms = 9\ngroup.max.session.timeout.ms = 8\n", "group.min"),
    ],
)
def test_a_toml_file_that_does_not_fit_is_one_line_that_names_it_and_2(
    path: Path, tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "klamm.toml"
    config.write_text(content)
    assert run(["serve", str(path), "--config", str(config)]) == 2
    out, told = capsys.readouterr()
    assert out == "" and told.count("\n") == 1
    assert told.startswith(f"klamm: {config}: ") and says in told
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--kafka", "x"], "--kafka: 'x' is invalid"),
        (["--kafka", "65536"], "from 0 to 65535"),
        (["--host", ""], "--host: is empty"),
        (["--advertise", "example.com"], "expected host:port"),
        (["--advertise", ":9092"], "expected host:port"),
        (["--advertise", "example.com:0"], "expected host:port"),
        (["--default-partitions", "0"], "--default-partitions"),
        (["--set", "node-id"], "expected --set name=value"),
        (["--set", "nodeid=1"], "did you mean 'node-id'?"),
        (["--set", "listener.name.x.ssl.client.auth=none"], "set ssl.client.auth without listener.name"),
        (["--set", "xyz=1"], "server-settings.md"),
        (["--log-format", "xml"], "expected text or json"),
        (["--log-level", "loud"], "expected info or debug"),
        (["--config", "nowhere.toml"], "--config nowhere.toml: No such file"),
        (["--kafak", "1"], "--kafka"),
        (["--kafka"], "--kafka"),
        (["another/"], "another/"),
    ],
)
def test_a_wrong_option_is_one_line_and_2(
    path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(path), *options]) == 2
    out, told = capsys.readouterr()
    assert out == "" and told.startswith("klamm: ") and told.count("\n") == 1, told
    assert says in told
    assert not path.exists()


def test_a_wrong_setting_names_the_last_place_that_said_it() -> None:
    said = {"kafka": SettingSource("kafka", "x", "klamm.toml"), "node_id": SettingSource("node-id", 3, "klamm.toml")}
    with pytest.raises(InvalidSetting, match=r"^klamm\.toml: kafka: 'x' is invalid"):
        _settings(said)


# The program


def test_without_a_command_it_shows_its_help_and_2() -> None:
    done = subprocess.run([KLAMM], capture_output=True, text=True)
    assert done.returncode == 2 and "serve" in done.stderr and done.stdout == ""


def test_an_unknown_command_is_one_line_and_2() -> None:
    assert "'serve'" in refused("srve", code=2)


def test_its_version_is_that_of_the_package() -> None:
    done = subprocess.run([KLAMM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"klamm {klamm.__version__}\n"


def test_help_imports_neither_a_server_nor_rich() -> None:
    code = "import sys, klamm.cli.main; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in ("asyncio", "rich", "prometheus_client", "klamm.kafka.server") if name in modules] == []


def test_an_error_nobody_expected_is_one_line_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("klamm.cli.serve._raise_open_files", lambda: 1 // 0)
    monkeypatch.setattr("klamm.kafka.logs.to_stderr", lambda *_: None)
    assert run(["serve", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "ZeroDivisionError" in told and "KLAMM_TRACEBACK=1" in told
    monkeypatch.setenv("KLAMM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(["serve", str(path)])


def test_it_takes_as_many_open_files_as_it_may(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with serving(path) as server:
            server.ready()
            assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_is_ready_and_when_it_stops(path: Path, tmp_path: Path, abstract: bool) -> None:
    name = f"klamm-{os.getpid()}-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if abstract else name)
        systemd.settimeout(30)
        with serving(path, environment={"NOTIFY_SOCKET": f"@{name}" if abstract else name}) as server:
            assert "READY=1" in systemd.recv(4096).decode().split("\n")
            server.ready()
            assert server.stop() == 0
            assert systemd.recv(4096) == b"STOPPING=1"


def test_a_notify_socket_that_is_not_there_does_not_matter(path: Path) -> None:
    with serving(path, environment={"NOTIFY_SOCKET": "/nowhere/notify"}) as server:
        server.ready()
        assert server.stop() == 0


def serves_and_stops(process: subprocess.Popen[bytes]) -> None:
    try:
        assert process.stderr is not None
        assert b"listening" in process.stderr.readline()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_stdout_that_nobody_reads_does_not_matter(path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen([KLAMM, "serve", path, "--kafka", "0"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    serves_and_stops(process)


def test_a_stdout_that_is_closed_does_not_matter(path: Path) -> None:
    command = f"exec {KLAMM} serve {path} --kafka 0 >&-"
    serves_and_stops(subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE))


# The log


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_is_one_line_an_event_and_none_for_a_request(path: Path, form: str) -> None:
    with serving(path, "--log-format", form) as server:
        producer = Producer({"bootstrap.servers": server.address})
        for number in range(
            200
        ):  # requests, or more: librdkafka makes 20 a second of full batches unless it is flushed
            for _ in range(10):
                producer.produce("orders", b"%d" % number)
            assert producer.flush(20) == 0
        consume(server.address, 2000)
        assert server.stop() == 0
        lines = server.stderr.splitlines()
    assert len(lines) < 15, lines
    if form == "json":
        events = [json.loads(line) for line in lines]
        assert all({"time", "level", "event"} <= event.keys() for event in events)
        assert events[0]["event"] == "listening" and events[0]["address"] == server.address
        assert events[-1]["event"] == "stopped"
    else:
        assert all(line[:4].isdigit() and line.split()[1] in {"INFO", "WARNING"} for line in lines)
        assert f"listening address={server.address}" in lines[0]


# Metrics


def test_metrics_without_the_package_are_one_line_and_1(path: Path, tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')\n")
    told = refused("serve", path, "--kafka", "0", "--metrics", "0", code=1, PYTHONPATH=str(tmp_path))
    assert "pip install 'klamm[server]'" in told
