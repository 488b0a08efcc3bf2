"""Servers for the tests: started as the plain two-server form starts them, always stopped."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from afd_workers.launch.free import free_ports
from afd_workers.launch.plan import LOOPBACK, Request, Server, native, split
from afd_workers.launch.process import ServerProcess
from afd_workers.launch.topology import Topology
from tests.support.forks import ENV, Fork

OPTIONS = ("--max-model-len", "512", "--dtype", "bfloat16", "--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20),
           "--served-model-name", "toy")  # fmt: skip
START_S = 240.0


def environment() -> dict[str, str]:
    """One process less per server, and one thread for each."""
    return {**os.environ, **ENV}


def roles(model: Path, options: tuple[str, ...] = OPTIONS, **section: object) -> tuple[Server, Server]:
    """(attention, ffn) of 1A1F on free ports; ``section`` goes into "afd"."""
    request = Request(str(model), Topology(1, 1), LOOPBACK, free_ports(1)[0], options, section)
    attention, ffn = split(request, environment(), cpu=True)
    return attention, ffn


def plain(model: Path, options: tuple[str, ...] = OPTIONS) -> Server:
    """Native vLLM on a free port."""
    return native(
        Request(str(model), Topology(1, 1), LOOPBACK, free_ports(1)[0], options), environment(), cpu=True, ranks=2
    )


def section_of(server: Server) -> dict[str, object]:
    """The additional config that a server is started with."""
    config: dict[str, object] = json.loads(server.command[server.command.index("--additional-config") + 1])
    return config


@contextmanager
def started(server: Server, log: list[str]) -> Iterator[ServerProcess]:
    """The server's process, its lines appended to ``log``; stopped at the end."""
    process = ServerProcess(server, log.append)
    try:
        yield process
    finally:
        process.terminate()
        process.end(10.0)


@contextmanager
def forked(server: Server, folder: Path, namespace: str | None = None) -> Iterator[Fork]:
    """The same without vLLM's import, for tests that are not about how servers start; its log is in ``folder``."""
    _python, _option, module, *arguments = server.command
    fork = Fork(module, arguments, server.env, folder / f"{server.name}.log", namespace)
    try:
        yield fork
    finally:
        fork.end()


def wait_ready(server: Server, fork: Fork) -> None:
    """Until it is healthy; AssertionError with the end of its log when it is not."""
    wait(server.name, lambda: status(server.health) == 200 or fork.poll() is not None)
    assert fork.poll() is None, "\n".join(fork.lines()[-60:])


def base(server: Server) -> str:
    """The server's URL without a path."""
    return server.health.removesuffix("/health")


def wait(what: str, condition: Callable[[], bool], timeout_s: float = START_S) -> None:
    """Until ``condition()``; AssertionError naming ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} took more than {timeout_s:g} s"
        time.sleep(0.2)


def status(url: str, body: dict[str, object] | None = None, timeout_s: float = 10.0) -> int:
    """HTTP status of a GET or, with a body, a POST; 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
