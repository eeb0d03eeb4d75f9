"""Run by every Python that tests of Spark start, before anything else.

Spark puts pyspark.zip in front of a worker's path. Modules in a zip have no bytecode, so each worker would compile
pyspark again: it is imported from site-packages, where the files are the same.

And what Spark starts is carried out by a fork of a process that has imported everything (tests/spark/forks.py), if
there is one. This one passes on what it was given, and lives as long as its fork.
"""

import os
import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip") or "/pyspark/python/lib/" not in entry]


def _live_as(fork_of: str) -> None:
    import json
    import signal
    import socket

    passed_on = {signal.SIGTERM, signal.SIGHUP}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # until it is known which process gets them
    with socket.socket(socket.AF_UNIX) as told:
        told.connect(fork_of)
        given = {
            "argv": sys.orig_argv[2:],
            "path": [os.getcwd(), *sys.path],
            "environment": dict(os.environ),
            "directory": os.getcwd(),
            "is_deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }
        text = json.dumps(given).encode()
        socket.send_fds(told, [b"%8d" % len(text)], [0, 1, 2])
        told.sendall(text)
        pid = int(told.recv(8))
        for number in passed_on:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        code = told.recv(8)
    os._exit(int(code) if code else 1)


_is_sparks = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
if "SPARK_FORKS" in os.environ and _is_sparks and sys.orig_argv[1] == "-m":
    _live_as(os.environ["SPARK_FORKS"])
