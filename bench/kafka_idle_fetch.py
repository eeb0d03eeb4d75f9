"""What does a poll of an idle consumer cost the Kafka door, with 200 partitions?

Bare sockets send a Fetch that waits 10 ms, and the next when its response is there: with nothing to read, of 200
partitions each. With a fetch session, as Java's client has one; beside the same with Apache Kafka, and beside Klamm's
own without a session, as librdkafka does it. The figures are the server's CPU a poll (user and system, of all its
threads), in microseconds. Clients are a process of their own, whose CPU is not in it.
"""

from __future__ import annotations

import contextlib
import selectors

import _harness as harness
import _kafka as kafka
from _processes import together
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import FETCH

CONNECTIONS = 20
WAIT_MS = 10
VERSION = 12


def fetch_frame(topic: str, partitions: int, session_id: int, epoch: int, wait_ms: int) -> bytes:
    """A request for these partitions, from the end of each, which is 0."""
    parts = [
        FETCH.request.Partition(partition=n, fetch_offset=0, current_leader_epoch=0, partition_max_bytes=1 << 20)
        for n in range(partitions)
    ]
    whole = FETCH.request(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FETCH.request.Topic(topic=topic, partitions=parts)] if parts else [],
    )
    return b"".join(request_frame(FETCH, VERSION, 1, "bench", whole))


def poll(start, address: str, pid: int, topic: str, partitions: int, with_session: bool, count: int) -> float:
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        raws = [stack.enter_context(kafka.Raw(address)) for _ in range(CONNECTIONS)]
        sessions = []
        for raw in raws:
            raw.send_bytes(fetch_frame(topic, partitions, 0, 0 if with_session else -1, 0))
            sessions.append(read_response(FETCH, VERSION, raw.receive())[1].session_id)
            assert (sessions[-1] > 0) == with_session
            selector.register(raw._socket, selectors.EVENT_READ, len(sessions) - 1)
        epochs = [0] * CONNECTIONS
        full = fetch_frame(topic, partitions, 0, -1, WAIT_MS)

        def send(number: int) -> None:
            epochs[number] += 1
            session = sessions[number]
            raws[number].send_bytes(fetch_frame(topic, 0, session, epochs[number], WAIT_MS) if with_session else full)

        def drive(polls: int) -> int:
            for number in range(CONNECTIONS):
                send(number)
            done, under_way = 0, CONNECTIONS
            while under_way:
                for key, _ in selector.select(kafka.PATIENCE_S):
                    response = raws[key.data].receive()
                    assert len(response) < 100 or not with_session, "there is nothing to tell"
                    done += 1
                    under_way -= 1
                    if done + under_way < polls:
                        send(key.data)
                        under_way += 1
            return done

        start()
        drive(count // 10)
        cpu = kafka.cpu_of(pid)
        done = drive(count)
        return (kafka.cpu_of(pid) - cpu) / done * 1e6


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(8000, "polls a round"),
        partitions=(200, "of a consumer"),
        warm=(40_000, "polls before the first round"),
    )
    count = 100 if options.quick else options.count
    peer = f"Apache Kafka {kafka.version()}, warm"
    with kafka.servers(quick=options.quick) as started:
        topics = {name: server.topic(options.partitions) for name, server in started.items()}

        def one_round(name: str, with_session: bool, polls: int = count) -> float:
            server = started[name]
            given = (server.address, server.pid, topics[name], options.partitions, with_session, polls)
            return float(together([(poll, given)])[0])

        if not options.quick:
            one_round("kafka", True, options.warm)
        found = harness.interleave(
            {
                "klamm": lambda: one_round("klamm", True),
                "kafka": lambda: one_round("kafka", True),
                "without": lambda: one_round("klamm", False, count // 10),
            },
            options.rounds,
            warm=False,
        )
    question = f"a poll of an idle consumer of {options.partitions} partitions"
    more = {"count": count, "connections": CONNECTIONS}
    unit = "µs of CPU a poll"
    harness.answer(question, found["klamm"], peer, found["kafka"], harness.at_most(50, "figure"), unit=unit, **more)
    harness.answer(question, found["klamm"], "without a session", found["without"], None, unit=unit, **more)


if __name__ == "__main__":
    main()
