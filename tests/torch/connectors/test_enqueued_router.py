"""Router logits over device transports, on CPU tensors: each layer's dtype is told once, and before rows come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from afd_connectors.control import Kind, Logits, encode
from afd_connectors.errors import FrameError
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort, SteppedFFNPort
from afd_connectors.testing.group import Group, answer_of, within
from afd_connectors.transports.enqueued.peer import Peer
from tests.support.fake_nccl import FakeNccl, FakeP2p
from tests.support.fake_nvlink import FakeNvlink
from tests.support.stepped import LAYERS, next_step, serve, stepped

EXPERTS = 8
DTYPES: tuple[torch.dtype | None, ...] = (None, torch.float32, torch.bfloat16)  # of the logits, by layer


@pytest.fixture(params=[FakeP2p, FakeNvlink])
def deploy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Group]:
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())

    def make(attention: int = 1, ffn: int = 1, router: int = EXPERTS) -> Group:
        shape = Shape(16, 8, "bfloat16", LAYERS, 2, router=router)
        return Group(request.param, shape, attention=attention, ffn=ffn, extra={"gather_ms": 1000})

    return make


def forward(group: Group, port: DeviceAttentionPort, step: Step) -> None:
    """One step of all layers and stages, each answer compared."""
    port.begin(step)
    for layer, dtype in enumerate(DTYPES):
        for stage, rows in enumerate(step.tokens):
            hidden, out = group.rows(rows), group.rows(rows)
            router = None if dtype is None else torch.randint(0, 4, (rows, EXPERTS)).to(dtype)
            port.send(step, layer, hidden, router, stage=stage)
            port.recv(step, layer, out, stage=stage)
            assert torch.equal(out, answer_of(hidden, layer, stage, router))


@pytest.mark.parametrize("tokens", [(5,), (4, 3)])
def test_logits_of_each_layer_come_with_its_rows(deploy, tokens: tuple[int, ...]) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        for seq in (1, 2):
            forward(group, port, Step(seq, Mode.EAGER, tokens))


def test_rows_and_logits_are_split_alike_over_several_ffn_ranks(deploy) -> None:
    with deploy(ffn=3) as group:
        group.start_ffn()
        forward(group, group.open_attention(), Step(1, Mode.EAGER, (7,)))


def test_logits_of_several_peers_are_one_batch(deploy) -> None:
    with deploy(attention=2) as group:
        ffn = stepped(group)
        ports = [group.open_attention(rank) for rank in (0, 1)]
        sizes: list[int] = []

        def drive() -> None:
            served = 0
            while served < 2:
                gathered = next_step(ffn)
                sizes.append(serve(ffn, gathered))
                served += len(gathered.members)

        threads = [
            threading.Thread(target=forward, args=(group, port, Step(1, Mode.EAGER, (rows,))))
            for port, rows in zip(ports, (3, 4), strict=True)
        ]
        serving = threading.Thread(target=drive)
        for thread in (*threads, serving):
            thread.start()
        for thread in (*threads, serving):
            thread.join(10)
        assert sum(sizes) == 7 * LAYERS
        ffn.close()


def test_a_new_connection_is_told_before_its_first_step(deploy) -> None:
    """A graph that attention captured earlier tells nothing when it runs."""
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        forward(group, port, Step(1, Mode.EAGER, (3,)))
        group.stop_ffn()
        assert within(5, port.lost)
        ffn = stepped(group)
        port.rejoin()
        port.begin(Step(2, Mode.REPLAY, (3,)))
        gathered = next_step(ffn)
        assert isinstance(ffn, SteppedFFNPort)
        assert [ffn._code(ffn._plan(gathered, 0), layer) for layer in range(LAYERS)] == [0, 1, 3]  # type: ignore[attr-defined]
        ffn.close()


def test_a_layer_keeps_its_dtype(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        forward(group, port, Step(1, Mode.EAGER, (3,)))
        step = Step(2, Mode.EAGER, (3,))
        port.begin(step)
        with pytest.raises(ValueError, match="layer 0 came with no router logits before, found logits in float32"):
            port.send(step, 0, group.rows(3), torch.zeros(3, EXPERTS))
        with pytest.raises(ValueError, match="found int64"):
            port.send(step, 0, group.rows(3), torch.zeros(3, EXPERTS, dtype=torch.int64))
        group.exchange(port, step, 0)  # the right one is taken afterwards


def test_an_attention_rank_that_takes_its_time_is_waited_for(deploy) -> None:
    """Its first step may compile kernels for longer than anybody's answer may take."""
    with deploy() as group:
        group.limits(timeout_s=1.5)
        group.start_ffn()
        port = group.open_attention()
        step = Step(1, Mode.EAGER, (3,))
        port.begin(step)
        time.sleep(2.5)
        for layer in range(LAYERS):
            group.exchange(port, step, layer)
        assert not port.lost()


def test_an_attention_rank_that_tells_nothing_is_dropped_in_time(deploy) -> None:
    with deploy() as group:
        group.limits(recovery_timeout_s=1.0)
        ffn = stepped(group)
        port = group.open_attention()
        port.begin(Step(1, Mode.EAGER, (3,)))
        gathered = next_step(ffn)
        ffn.take(gathered, 0, 0)
        assert within(5, port.lost)
        assert not ffn.epochs()
        ffn.close()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([Logits(LAYERS, 1)], f"it told of logits of layer {LAYERS} in dtype 1"),
        ([Logits(2**32 - 1, 0)], "it told of logits of layer 4294967295 in dtype 0"),
        ([Logits(0, 99)], "it told of logits of layer 0 in dtype 99"),
        ([Logits(0, 1)] * 500 + [Logits(0, 2)], "it changed what it had told of the logits of layer 0"),
    ],
)
def test_a_rank_that_tells_what_cannot_be_is_dropped(
    deploy, told: list[Logits], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        for each in told:
            port._lines[0].channel.tell(each)
        assert ffn.next_step(wait_s=0.5) is None
        assert within(5, port.lost)
        assert why in caplog.text
        ffn.close()


def test_what_a_rank_left_behind_stays_while_a_step_is_taken(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step may be under capture, in which nothing can be asked of a device or given back to it."""
    with deploy(attention=2) as group:
        ffn = stepped(group)
        staying, leaving = (group.open_attention(rank) for rank in (0, 1))
        assert within(5, lambda: len(ffn.epochs()) == 2)
        assert ffn.next_step(wait_s=0) is None
        freed: list[int] = []
        monkeypatch.setattr(Peer, "free", lambda peer: freed.append(peer.rank))
        staying.begin(Step(1, Mode.CAPTURE, (3,)))
        gathered = next_step(ffn)
        leaving.close()
        assert within(5, lambda: len(ffn.epochs()) == 1)
        telling = threading.Timer(0.2, lambda: staying.send(gathered.members[0].step, 0, group.rows(3)))
        telling.start()
        assert ffn._code(ffn._plan(gathered, 0), 0) == 0  # type: ignore[attr-defined]
        assert freed == []
        telling.join(5)
        monkeypatch.undo()
        assert ffn.next_step(wait_s=0) is None
        ffn.close()


def test_logits_that_nobody_asked_for_break_the_protocol(deploy) -> None:
    with deploy(router=0) as group:
        ffn = stepped(group)
        port = group.open_attention()
        port._lines[0].channel.tell(Logits(0, 1))
        assert ffn.next_step(wait_s=0.2) is None
        assert within(5, port.lost)
        ffn.close()


def test_a_frame_of_another_length_is_refused() -> None:
    assert Logits.decode(Logits(3, 2).encode()) == (3, 2)
    with pytest.raises(FrameError, match="has 5 bytes, found 4"):
        Logits.decode(b"1234")
    assert len(encode(Kind.LOGITS, Logits(3, 2).encode())) == 13
