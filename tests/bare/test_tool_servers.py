"""Tools that start servers and engines: how many make sense, and that none stays when the tool is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tools.gpu.children import Failed
from tools.gpu.serve_parts import Part
from tools.topologies import listening, room

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = """
import os, sys, time
print(f"mine {os.getpid()}", file=sys.stderr, flush=True)
time.sleep(120)
"""
SERVER = """
from tools.gpu.servers import Servers
Servers(folder).start("sleeps", [], None, ("sleeper",))
"""
ENGINE = """
from tools.gpu.children import Children
Children(folder).start("sleeps", "sleeper", {}, None)
"""


@pytest.mark.parametrize(
    ("names", "more", "sentence"),
    [
        (["8A8F"], {}, None),
        (["2A2F", "3A1F", "1A3F"], {"at_once": True}, None),
        (["8A9F"], {}, "expected at most 16 processes, 8 for each of 2 processors, found 17 in 8A9F: name a smaller"),
        (["1A3F-tp10-ep2"], {"standby": True}, "found 18 in 1A3F-tp10-ep2: name a smaller topology"),
        (["4A4F", "2A2F", "2A1F"], {"at_once": True}, None),
        (["4A4F", "2A2F", "2A2F"], {"at_once": True}, "found 17 in all parts at once: name fewer parts or leave --at"),
        (["1A1F", "1A1F-tp2"], {"at_once": True, "standby": True}, None),
        (["5A4F", "1A1F-tp2"], {"at_once": True, "standby": True}, "found 17 in all parts"),
    ],
)
def test_a_run_starts_no_more_processes_than_make_sense(
    names: list[str], more: dict[str, bool], sentence: str | None
) -> None:
    parts, chosen = [Part.parse(name) for name in names], {"standby": False, "at_once": False, **more}
    if sentence is None:
        room.check(parts, 2, **chosen)
        return
    with pytest.raises(ValueError, match=sentence):
        room.check(parts, 2, **chosen)


@pytest.mark.parametrize("start", [SERVER, ENGINE], ids=["server", "engine"])
def test_nothing_that_a_tool_started_outlives_it(start: str, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    script = f"import pathlib, time\nfolder = pathlib.Path({str(tmp_path)!r})\n{start}\ntime.sleep(120)"
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}) as tool:
        try:
            pid = _told(tmp_path / "sleeps.log", tool)
            assert _lives(pid)
        finally:
            tool.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if _lives(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it outlived the tool")


def test_a_killed_servers_port_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(
            Failed, match=rf"^something still listens on port {port} 0.1 s after its server was killed$"
        ):
            listening.gone(port, 0.1)
        timer = threading.Timer(0.3, held.close)
        began = time.monotonic()
        timer.start()
        listening.gone(port, 10)
        assert 0.2 < time.monotonic() - began < 5
        timer.join()
    listening.gone(port, 0.1)


def _told(log: Path, tool: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and tool.poll() is None:
        for line in log.read_text().splitlines() if log.exists() else ():
            if line.startswith("mine "):
                return int(line.split()[1])
        time.sleep(0.05)
    raise AssertionError(f"nothing was started; the tool's status is {tool.poll()}")


def _lives(pid: int) -> bool:
    """Not so for one that ended and that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
