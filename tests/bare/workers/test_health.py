"""What /health and /ready say: from a port's peers over shared memory to an answer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.ports import AttentionPort, PeerStatus
from afd_workers.health import Health, board
from afd_workers.health.board import MOST_PEERS, VARIABLE, Board
from afd_workers.health.middleware import Message, Receive, Scope, Send
from afd_workers.health.report import Report
from afd_workers.health.standing import SERVING, Standing, Status, standing, worst


def peer(rank: int, state: Literal["waiting", "connected", "lost"] = "connected", since: float = 100.0) -> PeerStatus:
    return PeerStatus(rank, state, since, "127.0.0.1:1", None)


def test_a_rank_serves_while_every_peer_is_connected() -> None:
    assert standing([peer(0), peer(1)], underway=True, now=200.0) == SERVING


@pytest.mark.parametrize(("underway", "status"), [(True, Status.WAITING), (False, Status.LOST)])
def test_a_lost_peer_is_waited_for_once_something_was_asked(underway: bool, status: Status) -> None:
    found = standing([peer(0), peer(2, "lost", 150.0), peer(1, "lost", 160.0)], underway=underway, now=200.0)
    assert found == Standing(status, (1, 2), 150.0)
    assert found.told(203.24) == {
        "status": status.name.lower(),
        "for": ["FFN rank 1", "FFN rank 2"],
        "since_s": 53.2,
    }


def test_a_peer_that_is_back_within_a_second_is_not_noticed() -> None:
    assert standing([peer(0, "lost", 199.5)], underway=True, now=200.0) == SERVING


def test_the_most_urgent_rank_speaks_for_a_server() -> None:
    waiting = [Standing(Status.WAITING, (1,), 30.0), Standing(Status.WAITING, (0, 1), 20.0)]
    assert worst([SERVING, Standing(Status.LOST, (3,), 1.0), *waiting]) == Standing(Status.WAITING, (0, 1), 20.0)
    assert worst([SERVING, SERVING]) == SERVING


standings = st.builds(
    Standing,
    st.sampled_from(Status),
    st.lists(st.integers(0, 65535), unique=True, max_size=MOST_PEERS).map(lambda peers: tuple(sorted(peers))),
    st.floats(0, 1e9),
)


@given(st.dictionaries(st.integers(0, 7), standings))
def test_what_is_posted_is_read(posted: dict[int, Standing]) -> None:
    made = Board.make(8)
    try:
        for rank, found in posted.items():
            made.post(rank, found)
        other = Board.open(made.path)
        assert other.read() == posted
        other.close()
    finally:
        made.close()


def test_a_slot_that_is_half_written_says_nothing() -> None:
    made = Board.make(2)
    made.post(1, Standing(Status.WAITING, (3,), 7.0))
    with open(made.path, "r+b") as memory:
        memory.seek(-5, os.SEEK_END)
        memory.write(b"?")
    assert made.read() == {}
    made.close()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """This process's board, named in the environment as the API server does it."""
    monkeypatch.setenv(VARIABLE, "/proc/1/fd/99999")
    board.offer(2)
    found = board.find()
    assert found is not None
    yield found
    found.close()


def test_a_process_that_the_server_starts_finds_the_board(offered: Board) -> None:
    code = (
        "from afd_workers.health import board, standing as s\n"
        "board.find().post(1, s.Standing(s.Status.WAITING, (0,), 5.0))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path()})
    assert offered.read() == {1: Standing(Status.WAITING, (0,), 5.0)}


def path() -> str:
    """This interpreter's search path for one that it starts."""
    return os.pathsep.join(filter(None, sys.path))


def test_nothing_is_left_of_the_board_of_a_killed_server(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; from afd_workers.health import board; board.offer(1); print(os.environ[board.VARIABLE])"
    command = [sys.executable, "-c", f"{code}\nimport sys; sys.stdout.flush(); time.sleep(60)"]
    env = {**os.environ, "PYTHONPATH": path()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        monkeypatch.setenv(VARIABLE, process.stdout.readline().strip())
        found = board.find()
        assert found is not None
        found.close()
        process.kill()
    assert board.find() is None


class Port(AttentionPort):
    """One that only has peers."""

    def __init__(self) -> None:
        self.found = (peer(0),)

    def peers(self) -> tuple[PeerStatus, ...]:
        return self.found

    def begin(self, step: object) -> None:
        raise AssertionError

    def send(self, *_: object, **__: object) -> None:
        raise AssertionError

    recv = send

    def close(self) -> None:
        raise AssertionError


def test_a_report_follows_its_port(offered: Board) -> None:
    port = Port()
    report = Report(1, port, lambda: True)
    try:
        until(lambda: offered.read() == {1: SERVING})
        since = time.monotonic() - 5
        port.found = (peer(0, "lost", since),)
        until(lambda: offered.read() == {1: Standing(Status.WAITING, (0,), since)})
        port.found = (peer(0),)
        until(lambda: offered.read() == {1: SERVING})
    finally:
        report.close()
        report.close()


def until(condition: object) -> None:
    """Within five seconds."""
    assert callable(condition)
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_report_without_a_board_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    Report(0, Port(), lambda: True).close()


class App:
    """A server whose /health answers ``status`` with an empty body, as vLLM's does; other paths answer 404."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.paths: list[object] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        status = self.status if scope["path"] == "/health" else 404
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-native", b"1")]})
        await send({"type": "http.response.body", "body": b""})


def ask(app: App, path: str, method: str = "GET", root: str = "") -> tuple[object, bytes]:
    """(status, body) of one request through the middleware."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": method, "path": path, "root_path": root}
    asyncio.run(Health(app)(scope, receive, send))
    body = sent[1]["body"]
    assert isinstance(body, bytes)
    return sent[0]["status"], body


WAITING = Standing(Status.WAITING, (0,), 0.0)
LOST = Standing(Status.LOST, (0,), 0.0)


@pytest.mark.parametrize(
    ("posted", "live", "ready", "status"),
    [(SERVING, 200, 200, "serving"), (WAITING, 200, 503, "waiting"), (LOST, 200, 200, "lost")],
)
def test_probes(offered: Board, posted: Standing, live: int, ready: int, status: str) -> None:
    offered.post(0, posted)
    for probed, expected in (("/health", live), ("/ready", ready), ("/prefix/ready", ready)):
        code, body = ask(App(), probed, root="/prefix")
        assert code == expected
        said = json.loads(body)
        assert said["status"] == status
        assert (said.get("for") == ["FFN rank 0"]) == (status != "serving")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_dead_engine_is_neither_alive_nor_ready(offered: Board, path: str) -> None:
    offered.post(0, SERVING)
    assert ask(App(503), path) == (503, b'{"status": "dead"}')


def test_everything_else_is_the_servers_own(offered: Board) -> None:
    offered.post(0, WAITING)
    app = App()
    assert ask(app, "/v1/models") == (404, b"")
    assert ask(app, "/health", "POST") == (200, b"")
    assert app.paths == ["/v1/models", "/health"]


def test_without_a_word_from_any_rank_the_native_answer_stands(offered: Board) -> None:
    assert ask(App(), "/health") == (200, b"")
    assert ask(App(503), "/ready") == (503, b"")
