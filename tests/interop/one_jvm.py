"""Kafka's Java tools in one JVM, one after the other: a JVM of its own costs each of them two seconds of CPU.

Py4J, which comes with pyspark, calls the tool's `main`. Standard streams are the JVM's: `ToolJvm` replaces them once,
before any tool or logger keeps a reference, and empties them for each tool. `Exit.exit`, with which tools end, raises
an exception here. A tool that runs until it is killed needs a process of its own: see java_tools.start_tool.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError

from tests.interop.java_tools import JARS, TOOLS, java

__all__ = ["Ran", "ToolJvm"]

BOUND_S = 60


@dataclass(frozen=True)
class Ran:
    """What a tool printed, and how it ended."""

    name: str
    status: int
    out: str
    err: str

    def done(self) -> str:
        """What it printed, if it has ended well."""
        assert self.status == 0, f"{self.name} ended with {self.status}\n{self.out}\n{self.err}"
        return self.out


class ToolJvm:
    """A JVM that runs tools. Ended by `close`, and when this process ends, which closes its standard input."""

    def __init__(self) -> None:
        import pyspark

        (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        command = java("py4j.GatewayServer", "--die-on-broken-pipe", "0")
        command[command.index("-cp") + 1] = f"{JARS}/*:{py4j}"
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert self._process.stdout
            port = int(self._process.stdout.readline())
            self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, read_timeout=BOUND_S))
            self._jvm = self._gateway.jvm
            self._out, self._err = (self._jvm.java.io.ByteArrayOutputStream() for _ in range(2))
            system, stream = self._jvm.java.lang.System, self._jvm.java.io.PrintStream
            system.setOut(stream(self._out, True, "UTF-8"))
            system.setErr(stream(self._err, True, "UTF-8"))
            self._statuses = self._jvm.java.util.ArrayList()
            self._jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(self._exit_procedure())
        except BaseException:
            self._process.kill()
            self._process.communicate(timeout=30)
            raise

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)

    def _array(self, java_class: Any, *items: Any) -> Any:
        made = self._gateway.new_array(java_class, len(items))
        for number, item in enumerate(items):
            made[number] = item
        return made

    def _exit_procedure(self) -> Any:
        """An Exit.Procedure: (status, message) -> add the status to `_statuses`, and raise IllegalStateException."""
        handles, jvm = self._jvm.java.lang.invoke.MethodHandles, self._jvm
        text, error = self._class("java.lang.String"), self._class("java.lang.IllegalStateException")
        integer, nothing = jvm.java.lang.Integer.TYPE, jvm.java.lang.Void.TYPE

        def type_of(returned: Any, *taken: Any) -> Any:
            return jvm.java.lang.invoke.MethodType.methodType(returned, self._array(jvm.java.lang.Class, *taken))

        def filtered(handle: Any, by: Any) -> Any:
            return handles.filterArguments(handle, 0, self._array(jvm.java.lang.invoke.MethodHandle, by))

        lookup = handles.publicLookup()
        to_text = lookup.findStatic(self._class("java.lang.Integer"), "toString", type_of(text, integer))
        make = filtered(lookup.findConstructor(error, type_of(nothing, text)), to_text)
        throw = filtered(handles.throwException(nothing, error), make)
        takes_object = type_of(jvm.java.lang.Boolean.TYPE, self._class("java.lang.Object"))
        add = lookup.findVirtual(self._class("java.util.ArrayList"), "add", takes_object).bindTo(self._statuses)
        exits = handles.foldArguments(throw, add.asType(type_of(nothing, integer)))
        exits = handles.dropArguments(exits, 1, self._array(jvm.java.lang.Class, text))
        procedure = self._class("org.apache.kafka.common.utils.Exit$Procedure")
        return jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(procedure, exits)

    def run(self, name: str, *arguments: str, given: str = "", properties: Mapping[str, str] | None = None) -> Ran:
        """Run a tool to its end; `given` is its standard input. `properties`: of the JVM, from now on."""
        for property_name, value in (properties or {}).items():
            self._jvm.java.lang.System.setProperty(property_name, value)
        self._out.reset()
        self._err.reset()
        del self._statuses[:]
        self._jvm.java.lang.System.setIn(self._jvm.java.io.ByteArrayInputStream(given.encode()))
        tool = self._jvm
        for part in TOOLS[name].split("."):
            tool = getattr(tool, part)
        try:
            tool.main(self._array(self._jvm.java.lang.String, *arguments))
        except Py4JJavaError as error:
            if not self._statuses:
                raise AssertionError(f"{name}: {error}\n{self._out.toString()}\n{self._err.toString()}") from error
        except Py4JError as error:
            raise AssertionError(f"{name}: not ended within {BOUND_S} s, or the JVM is gone") from error
        status = self._statuses[0] if self._statuses else 0  # a tool may catch the first exception, and exit again
        return Ran(name, status, self._out.toString("UTF-8"), self._err.toString("UTF-8"))

    def close(self) -> None:
        self._gateway.shutdown()
        self._process.kill()
        self._process.communicate(timeout=30)
