"""Everything that can fail while eight requests run, one fault after the other in one deployment's life.

Each test but the last leaves the deployment serving, and starts what it needs that is not running. Those that do not
need a second host run over every connector that survives the loss of a rank.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from afd_workers.launch.free import free_ports
from afd_workers.launch.plan import Server
from tests.support.checkpoints import Checkpoint
from tests.support.forks import Fork
from tests.support.netns import Cable, lacking
from tests.support.offline import Run
from tests.support.prompts import prompts
from tests.support.servers import base, forked, roles, wait, wait_ready
from tests.support.sockets import listens, probe
from tools.streams import Crowd

pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute or two
TOKENS = 300
SEEN = 20  # tokens of each client before a fault
PROMPTS = prompts(8, 8, 40, seed=7)
TIMEOUT_S, RECOVERY_S, LAST_RECOVERY_S = 5.0, 200.0, 6.0
STOPPED_S, CUT_S = 20.0, 8.0
ANY = pytest.mark.parametrize("scene", ["tcp", "shm"], indirect=True)
HOSTS = pytest.mark.parametrize("scene", ["tcp"], indirect=True)
SOON_S = 15.0  # five seconds are meant, on a machine with nothing else to do


@dataclass(slots=True)
class Scene:
    """One attention server, its FFN server and a standby, each started when it is first needed.

    The standby is at the other end of the cable where there is one; folder: for logs.
    """

    connector: str
    attention: Server
    ffn: Server
    standby: Server
    expected: list[list[int]]
    stack: ExitStack
    folder: Path
    cable: Cable | None
    running: dict[str, Fork] = field(default_factory=dict)
    table: list[tuple[str, int, int, str]] = field(default_factory=list)

    def start(self, server: Server) -> Fork:
        """Starts a server (again); returns at once."""
        namespace = self.cable.name if self.cable is not None and server is self.standby else None
        fork = self.stack.enter_context(forked(server, self.folder, namespace))
        self.running[server.name] = fork
        return fork

    def ready(self, server: Server) -> None:
        """Starts a server unless it runs, and waits until it is healthy."""
        wait_ready(server, self.running.get(server.name) or self.start(server))

    def signal(self, server: Server, number: int) -> float:
        """Sends it to all processes of a server; the moment of it."""
        fork = self.running[server.name]
        fork.signal(number)
        moment = time.monotonic()
        if number == signal.SIGKILL:
            wait(f"the end of {server.name}", lambda: not fork.session(), 10)
            del self.running[server.name]
        return moment

    def listening(self, server: Server) -> float:
        """The moment at which attention could connect to an FFN server that is starting."""
        fork, port = self.running[server.name], int(str(section(server)["port"]))
        wait(f"{server.name} listening", lambda: listens(fork.pid, port) or fork.poll() is not None)
        assert fork.poll() is None, "\n".join(fork.lines()[-60:])
        return time.monotonic()

    def move_to_standby(self) -> None:
        """Leaves the standby alone, for a test that runs without the ones before it."""
        self.ready(self.standby)
        if self.ffn.name in self.running:
            self.signal(self.ffn, signal.SIGKILL)

    def replace_attention(self) -> None:
        """Starts another attention server, one that gives up soon, in the place of one that was killed."""
        self.attention = like(self.attention, "replacement", recovery_timeout_s=LAST_RECOVERY_S)
        self.ready(self.attention)

    def crowd(self) -> Crowd:
        """Eight running requests, all in mid-generation."""
        crowd = Crowd(base(self.attention), PROMPTS, TOKENS)
        crowd.wait_tokens(SEEN)
        assert all(len(tokens) < TOKENS - SEEN for tokens in crowd.tokens), "the fault would come too late"
        return crowd

    def finished(self, fault: str, crowd: Crowd, what: str, since: float | None = None) -> None:
        """Every request has the native tokens, soon after ``since`` or else after the last token before the fault."""
        crowd.wait_end(120.0)
        equal = sum(found == native for found, native in zip(crowd.tokens, self.expected, strict=True))
        recovered = crowd.longest_pause() if since is None else crowd.next_after(since)
        self.table.append((fault, len(PROMPTS), equal, f"{recovered:.2f} {what}"))
        assert (equal, crowd.errors) == (len(PROMPTS), []), self.told()
        assert recovered < SOON_S, self.told()
        assert probe(self.attention.health) == (200, {"status": "serving"})

    def told(self) -> str:
        """The table so far."""
        rows = [("connector", "fault", "requests", "tokens equal", "seconds to the next token")]
        rows += [(self.connector, fault, str(asked), str(equal), soon) for fault, asked, equal, soon in self.table]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def section(server: Server) -> dict[str, object]:
    """A server's part of "afd"."""
    config: dict[str, dict[str, object]] = json.loads(server.command[server.command.index("--additional-config") + 1])
    return config["afd"]


def like(server: Server, name: str, *, host: str = "127.0.0.1", **changes: object) -> Server:
    """The same server at ``host``, with an HTTP port of its own and changes to its section."""
    words, http = list(server.command), free_ports(1)[0]
    words[words.index("--host") + 1], words[words.index("--port") + 1] = host, str(http)
    words[words.index("--additional-config") + 1] = json.dumps({"afd": {**section(server), "host": host, **changes}})
    return replace(server, name=name, command=tuple(words), health=f"http://{host}:{http}/health")


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Path:
    return checkpoint("qwen3-moe")


@pytest.fixture(scope="module")
def native(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    options: dict[str, object] = {"model": str(model), "max_model_len": 512}
    return Run(tmp_path_factory.mktemp("native"), options, [PROMPTS], tokens=TOKENS).outcome().tokens[0]


@pytest.fixture(scope="module")
def scene(
    request: pytest.FixtureRequest, model: Path, native: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    connector: str = request.param
    with ExitStack() as stack:
        hosts = connector == "tcp" and lacking() is None
        cable = stack.enter_context(Cable()) if hosts else None
        host = "127.0.0.1" if cable is None else cable.there
        spare = free_ports(1)[0]
        attention, ffn = roles(
            model,
            timeout_s=TIMEOUT_S,
            recovery_timeout_s=RECOVERY_S,
            join_timeout_s=RECOVERY_S,
            connector=connector,
            secret="chaos",
            connector_extra_config={"standby_addresses": [f"{host}:{spare}"]},
        )
        standby = like(ffn, "standby", host=host, port=spare)
        standby = replace(standby, env={**standby.env, "VLLM_HOST_IP": "127.0.0.1"})
        folder = tmp_path_factory.mktemp(connector)
        scene = Scene(connector, attention, ffn, standby, native, stack, folder, cable)
        for server in (ffn, attention):
            scene.start(server)
        scene.ready(attention)
        yield scene
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{scene.told()}\n")


def waits(scene: Scene) -> bool:
    """Whether attention says that it lives and waits for its FFN rank."""
    code, said = probe(scene.attention.health)
    return code == 200 and said.get("status") == "waiting" and said["for"] == ["FFN rank 0"]


@ANY
def test_an_ffn_server_is_killed_and_started_again(scene: Scene) -> None:
    assert probe(scene.attention.health) == (200, {"status": "serving"})
    crowd = scene.crowd()
    scene.signal(scene.ffn, signal.SIGKILL)
    wait("health's word on whom attention waits for", lambda: waits(scene), 10)
    code, said = probe(f"{base(scene.attention)}/ready")
    assert code == 503
    assert said["status"] == "waiting"
    assert 0.9 < float(str(said["since_s"])) < 10
    scene.start(scene.ffn)
    scene.finished("kill -9 of the FFN, restarted", crowd, "after it listens", scene.listening(scene.ffn))
    assert probe(f"{base(scene.attention)}/ready") == (200, {"status": "serving"})


@ANY
def test_an_ffn_server_is_stopped_for_twenty_seconds(scene: Scene) -> None:
    crowd = scene.crowd()
    scene.signal(scene.ffn, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    assert waits(scene)
    goes_on = scene.signal(scene.ffn, signal.SIGCONT)
    scene.finished("SIGSTOP of the FFN for 20 s", crowd, "after SIGCONT", goes_on)


@ANY
def test_a_standby_takes_over(scene: Scene) -> None:
    scene.ready(scene.standby)
    crowd = scene.crowd()
    scene.signal(scene.ffn, signal.SIGKILL)
    scene.finished("kill -9 of the FFN, standby", crowd, "after the last token")


@HOSTS
@pytest.mark.needs_netns
def test_a_cable_is_cut_and_mended(scene: Scene) -> None:
    assert scene.cable is not None
    scene.move_to_standby()
    crowd = scene.crowd()
    scene.cable.cut()
    time.sleep(CUT_S)
    assert waits(scene)
    scene.cable.mend()
    scene.finished("network link cut for 8 s", crowd, "after the mending", time.monotonic())


@HOSTS
def test_an_attention_server_is_killed_and_replaced(scene: Scene) -> None:
    scene.move_to_standby()
    crowd = scene.crowd()
    killed = scene.signal(scene.attention, signal.SIGKILL)
    crowd.wait_end(10)
    assert len(crowd.errors) == len(PROMPTS)
    standby = scene.running[scene.standby.name]
    wait("its word", lambda: any("stops serving attention rank 0" in line for line in standby.lines()), 10)
    freed = time.monotonic() - killed
    scene.replace_attention()
    begun = time.monotonic()
    scene.finished(f"kill -9 of attention, freed in {freed:.1f} s", scene.crowd(), "after its readiness", begun)


@HOSTS
def test_attention_ends_when_nobody_comes_back(scene: Scene) -> None:
    scene.move_to_standby()
    if scene.attention.name != "replacement":
        scene.signal(scene.attention, signal.SIGKILL)
        scene.replace_attention()
    crowd = scene.crowd()
    killed = scene.signal(scene.standby, signal.SIGKILL)
    crowd.wait_end(LAST_RECOVERY_S + 20)
    gave_up = time.monotonic() - killed
    assert len(crowd.errors) == len(PROMPTS)
    attention = scene.running[scene.attention.name]
    wait("the end of attention", lambda: not attention.session(), 30)
    sentence = (
        r"PeerLost: lost at \d\d:\d\d:\d\d because .+; attention rank 0 did not reach FFN rank 0 at .+ "
        rf"within {LAST_RECOVERY_S:g} s: .+ \(tcp, attention rank 0, peer FFN rank 0, step \d+, layer \d, stage 0;"
    )
    assert any(re.search(sentence, line) for line in attention.lines()), "\n".join(attention.lines()[-60:])
    assert gave_up >= LAST_RECOVERY_S
    scene.table.append(("kill -9 of the last FFN", len(PROMPTS), 0, f"the engine ended after {gave_up:.1f}"))
