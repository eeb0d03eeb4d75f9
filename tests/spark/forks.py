"""Spark's Python processes, as forks of one that has imported what they import.

    python -m tests.spark.forks <socket>        until its standard input ends

A session starts one for each kind of task, one for each streaming query, and another wherever one has failed: some 300
in `make test`. Each imports pyspark, pyarrow, pandas and klamm, and has done its work after a few milliseconds.

Those who connect (startup/sitecustomize.py) send what they were started with: arguments, path, environment, directory,
and their standard files. They get the number of the process that does it, and when it has ended, its code. If they are
killed, so is it; but not one that ends when its standard input does, and its own forks with it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

NAME = "SPARK_FORKS"
"""The variable that says where to connect to."""
FILES = (0, 1, 2)
SIZE = 8  # of a number, as text
ALONE = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
"""Keeps what is imported from starting threads: a fork would not have them."""
DAEMON = "pyspark.daemon"
WORKERS = (
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
IMPORTED = (
    *("pandas", "pyarrow.parquet", "pyspark.sql.pandas.types", "pyspark_klamm", "klamm.spark.source"),
    *("klamm.arrow.restore_writer", "klamm.spark.pipelines", "klamm.spark.sink", "klamm.spark.stream"),
)


@contextmanager
def forks() -> Iterator[dict[str, str]]:
    """Have such a process: the variable for those who start Spark, which goes with PYTHONPATH (classes.py).

    On Linux only. Elsewhere there is none, and each process imports for itself.
    """
    if sys.platform != "linux":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="forks-") as directory:
        tp = f"{directory}/socket"
        environment = {**os.environ, **ALONE, "PYTHONHASHSEED": "0"}  # the latter as Spark has it
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.forks", tp],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdout:
                assert process.stdout.readline() == b"ready\n"
            yield {NAME: tp}
        finally:
            process.stdin.close()
            process.wait(60)


class Forks:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._told: dict[int, socket.socket] = {}  # those who wait, by the process that works for them
        self._selector = selectors.DefaultSelector()
        # A signal handler's byte wakes the loop.
        self._woken, waking = socket.socketpair()
        for each in (self._woken, waking):
            each.setblocking(False)
        self._waking = waking
        signal.set_wakeup_fd(waking.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._selector.register(0, selectors.EVENT_READ, None)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _accept(self) -> None:
        told, _ = self._listening.accept()
        head, descriptors, _, _ = socket.recv_fds(told, SIZE, len(FILES))
        size = int(head or b"1")
        with told.makefile("rb") as file:
            text = file.read(size)
        if len(text) < size:  # killed meanwhile
            told.close()
        elif pid := os.fork():
            self._told[pid] = told
            self._tell(told, pid)
            if json.loads(text)["argv"][0] != DAEMON:
                self._selector.register(told, selectors.EVENT_READ, partial(self._kill, pid))
        else:
            self._work(told, descriptors, json.loads(text))
        for each in descriptors:
            os.close(each)

    @staticmethod
    def _tell(told: socket.socket, number: int) -> None:
        try:
            told.sendall(b"%*d" % (SIZE, number))
        except OSError:
            pass  # it is not there any more

    def _kill(self, pid: int) -> None:
        if told := self._told.get(pid):
            self._selector.unregister(told)
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        self._woken.recv(4096)
        while self._told:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._told.pop(pid) as told:
                if told in self._selector.get_map():
                    self._selector.unregister(told)
                self._tell(told, os.waitstatus_to_exitcode(status) & 255)

    def _work(self, told: socket.socket, descriptors: list[int], given: dict[str, Any]) -> None:
        """In the fork: be what Spark has started."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN if given["is_deaf"] else signal.default_int_handler)
            self._selector.close()
            for each in (self._listening, self._woken, self._waking, told, *self._told.values()):
                each.close()
            for descriptor, number in zip(descriptors, FILES, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(given["directory"])
            os.environ.clear()
            os.environ.update(given["environment"])
            time.tzset()
            sys.path[:] = given["path"]
            module = given["argv"][0]
            sys.argv = given["argv"]
            sys.modules.pop(module, None)  # it is run, not imported
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 255)


def main(tp: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this closes its input
    for name in (DAEMON, *WORKERS, *IMPORTED):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "threads, which forks would not have"
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(tp)
        listening.listen(100)
        os.write(1, b"ready\n")
        os.dup2(2, 1)
        Forks(listening).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
