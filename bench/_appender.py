"""A process that appends to a partition, for scripts that run it on two trees of sources (`_before.Worker`).

write PATH SECONDS     for each line of stdin: append for so long; records, seconds, p99 of one append in µs
one PATH               for each line: append one record; µs
now_and_then PATH N    for each line: append N records with a pause before each; µs of each
loop PATH              append without end from the first line on, until stdin is closed
durable PATH N         for each line: append N records, acks="all"; µs of each. The log has 128 KiB before
send PATH N            for each line: N times `send` of a new producer, acks=1, until all is delivered; seconds, CPU
make PATH              make the store
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from typing import Any

import klamm

KEY, VALUE = bytes(8), bytes(100)
PAUSE_S = 0.001
clock = time.perf_counter_ns


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def percentile(values: list[int], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))] / 1000


def write(append: Any, seconds: str) -> Any:
    times = []
    before = begin = clock()
    end = begin + int(float(seconds) * 1e9)
    while before < end:
        append("bench", VALUE, key=KEY, acks=1)
        now = clock()
        times.append(now - before)
        before = now
    return len(times), (before - begin) / 1e9, percentile(times, 99)


def one(append: Any) -> Any:
    begin = clock()
    append("bench", VALUE, key=KEY, acks=1)
    return (clock() - begin) / 1000


def now_and_then(append: Any, count: str) -> Any:
    times = []
    for _ in range(int(count)):
        time.sleep(PAUSE_S)
        times.append(one(append))
    return times


def durable(append: Any, count: str) -> Any:
    times = []
    for _ in range(int(count)):
        begin = clock()
        append("bench", VALUE, key=KEY)
        times.append((clock() - begin) / 1000)
    return times


def loop(append: Any) -> Any:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.is_set():
        for _ in range(100):
            append("bench", VALUE, key=KEY, acks=1)


def send(store: klamm.Store, count: str) -> Any:
    rows = [KEY] * int(count)
    gc.disable()
    cpu, begin = time.process_time(), clock()
    with store.producer(acks=1) as producer:
        one_by_one = producer.send
        for key in rows:
            one_by_one("bench", VALUE, key=key)
    return (clock() - begin) / 1e9, time.process_time() - cpu


PROGRAMS = {"write": write, "one": one, "now_and_then": now_and_then, "durable": durable, "loop": loop, "send": send}


def main(program: str, path: str, *arguments: str) -> None:
    with klamm.open(path) as store:
        if program == "make":
            store._acquired().create_topic("bench", 1, {})  # the same call in the earlier tree
            say("ready")
            return
        append = store.append
        for _ in range(750 if program == "durable" else 1):
            append("bench", VALUE, key=KEY, acks=1)
        say("ready")
        while sys.stdin.readline():
            say(PROGRAMS[program](store if program == "send" else append, *arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
