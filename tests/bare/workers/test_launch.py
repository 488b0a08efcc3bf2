"""The launcher with stand-in servers: ready, watched, stopped, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from afd_workers.launch.fleet import Fleet, LaunchError
from afd_workers.launch.free import free_ports, is_free
from afd_workers.launch.plan import Server
from afd_workers.launch.process import ServerProcess

SERVER = """
import http.server, signal, subprocess, sys, time
port, behaviour = int(sys.argv[1]), sys.argv[2]
print("hello from", behaviour, flush=True)
if behaviour == "fails":
    print("  File 'x.py', line 1")
    print("ValueError: Expected a wheel, found a nail: use a wheel.")
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
    sys.exit(3)
if behaviour == "quiet":
    print("(APIServer pid=1) INFO 12:00 GET /health 200 OK", flush=True)
    sys.exit(4)
if behaviour == "endless":
    print("ValueError: " + "x" * 200000)
    sys.exit(5)
if behaviour == "odd":
    import socket
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            listener.accept()[0].sendall(b"SSH-2.0-nonsense\\n")
if behaviour == "memory":
    from multiprocessing import shared_memory
    print("segment", shared_memory.SharedMemory(create=True, size=4096).name, flush=True)
if behaviour == "loud":
    for number in range(20000):
        print("line", number, "of many", flush=False)
if behaviour == "hangs":
    time.sleep(600)
if behaviour in ("stubborn", "parent"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: sys.exit(0))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def server(tmp_path: Path, behaviour: str, name: str = "toy") -> Server:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    port = free_ports(1)[0]
    command = (sys.executable, str(script), str(port), behaviour)
    return Server(name, command, dict(os.environ), f"http://127.0.0.1:{port}/health")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().split()[2] == "Z"


def until(condition: object, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def said(lines: list[str], word: str) -> str:
    """The last word of the line with ``word``, which may arrive a little later than what it tells of."""
    assert until(lambda: any(word in line for line in lines))
    return next(line.rsplit(" ", 1)[1] for line in lines if word in line)


def test_ready_servers_are_named_with_their_addresses_and_stopped(tmp_path: Path) -> None:
    lines: list[str] = []
    servers = (server(tmp_path, "good", "one"), server(tmp_path, "good", "two"))
    with Fleet(servers, lines.append) as fleet:
        fleet.wait_ready(20)
        pids = fleet.pids
    assert set(pids) == {"one", "two"}
    assert all(gone(pid) for pid in pids.values())
    assert "[one] hello from good" in lines
    assert f"[afd] two is at {servers[1].health.removesuffix('/health')}" in lines


def test_a_server_that_fails_is_named_with_its_own_cause(tmp_path: Path) -> None:
    lines: list[str] = []
    with Fleet((server(tmp_path, "good", "fine"), server(tmp_path, "fails", "bad")), lines.append) as fleet:
        pids = fleet.pids
        with pytest.raises(
            LaunchError, match=r"^Expected bad to keep running, .* exit code 3: ValueError: Expected a wh"
        ):
            fleet.wait_ready(20)
    assert all(gone(pid) for pid in pids.values())


def test_a_server_that_dies_later_ends_the_watch(tmp_path: Path) -> None:
    with Fleet((server(tmp_path, "good", "first"),), lambda _line: None) as fleet:
        fleet.wait_ready(20)
        os.kill(fleet.pids["first"], signal.SIGKILL)
        with pytest.raises(
            LaunchError, match=r"Expected first to keep running, found it was ended by SIGKILL \(often a lack"
        ):
            fleet.watch()


def test_a_server_that_never_becomes_ready_is_named_after_the_deadline(tmp_path: Path) -> None:
    lines: list[str] = []
    expected = r"ready within 1 s, found slow still starting \(last log line: 'hello from hangs'"
    with Fleet((server(tmp_path, "hangs", "slow"),), lines.append) as fleet:
        assert until(lambda: any("hello from hangs" in line for line in lines))
        with pytest.raises(LaunchError, match=expected):
            fleet.wait_ready(1)


@pytest.mark.parametrize("behaviour", ["parent", "stubborn"])
def test_stopping_leaves_no_process_of_a_server_behind(tmp_path: Path, behaviour: str) -> None:
    lines: list[str] = []
    process = ServerProcess(server(tmp_path, behaviour), lines.append)
    assert until(process.is_ready)
    child = int(said(lines, "child"))
    process.terminate()
    process.end(1.0)
    assert gone(process.pid)
    assert until(lambda: gone(child))


def test_servers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    toy = server(tmp_path, "good")
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                from afd_workers.launch.fleet import Fleet
                from afd_workers.launch.plan import Server
                import os, time
                with Fleet((Server("toy", {toy.command!r}, dict(os.environ), {toy.health!r}),), print) as fleet:
                    fleet.wait_ready(20)
                    print(fleet.pids["toy"], flush=True)
                    time.sleep(600)
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    pid = next(int(line) for line in launcher.stdout if line.strip().isdigit())
    launcher.kill()
    launcher.wait(5)
    assert until(lambda: gone(pid))


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("quiet", r"ended with exit code 4: hello from quiet$"),
        ("endless", r"ended with exit code 5: ValueError: x{900,1000}$"),
    ],
)
def test_the_cause_is_never_routine_and_never_endless(tmp_path: Path, behaviour: str, told: str) -> None:
    with (
        Fleet((server(tmp_path, behaviour, "bad"),), lambda _line: None) as fleet,
        pytest.raises(LaunchError, match=told),
    ):
        fleet.wait_ready(20)


def test_something_else_on_the_port_is_not_ready(tmp_path: Path) -> None:
    process = ServerProcess(server(tmp_path, "odd"), lambda _line: None)
    time.sleep(0.5)
    assert not process.is_ready()
    process.terminate()
    process.end(2.0)


def test_a_proxy_in_the_environment_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Fleet((server(tmp_path, "good"),), lambda _line: None) as fleet:
        fleet.wait_ready(20)


def test_shared_memory_of_a_killed_server_is_freed(tmp_path: Path) -> None:
    lines: list[str] = []
    process = ServerProcess(server(tmp_path, "memory"), lines.append)
    assert until(process.is_ready)
    segment = said(lines, "segment")
    assert Path("/dev/shm", segment).exists()
    os.kill(process.pid, signal.SIGKILL)
    process.end(2.0)
    assert not Path("/dev/shm", segment).exists()


def test_a_server_goes_on_when_its_lines_can_no_longer_be_written(tmp_path: Path) -> None:
    def broken(_line: str) -> None:
        raise BrokenPipeError("the terminal went away")

    process = ServerProcess(server(tmp_path, "loud"), broken)
    assert until(process.is_ready)
    process.terminate()
    process.end(2.0)


def test_free_ports_are_not_those_that_connections_get() -> None:
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_ports(3)[-1] < given_from for _ in range(20))


def test_free_ports_are_consecutive_and_free() -> None:
    first, *rest = free_ports(4)
    assert rest == [first + 1, first + 2, first + 3]
    assert is_free("127.0.0.1", first)
    assert not is_free("127.0.0.1", 70000)
    assert not is_free("\u00fcx.invalid..", 8000)
