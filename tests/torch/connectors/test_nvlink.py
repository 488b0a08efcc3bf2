"""What is nvlink's own: memory that changes under addresses that stay, the device's verdicts, what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from afd_connectors.errors import HandshakeRefused, PeerLost
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.testing.group import Group, answer_of, within
from afd_connectors.transports.nvlink.failed import FOR_GOOD, CallFailed
from afd_connectors.transports.nvlink.link import Link
from afd_connectors.transports.nvlink.moves import Part
from tests.support.fake_nvlink import CountedDriver, FakeDriver, FakeMoves, FakeNvlink
from tests.support.stepped import LAYERS, begun, next_step, serve, stepped

WIDE = 4096


@pytest.fixture
def deploy() -> Callable[..., Group]:
    def make(attention: int = 1, hidden: int = 8, **extra: object) -> Group:
        return Group(FakeNvlink, Shape(16, hidden, "bfloat16", LAYERS, 2), attention=attention, extra=extra)

    return make


def link_of(port: object) -> Link:
    """The link of an attention port to FFN rank 0."""
    link = port._lines[0].link  # type: ignore[attr-defined]
    assert isinstance(link, Link)
    return link


def parts(link: Link) -> list[Part]:
    return [link.window.outgoing(64, 4, 1, 1), link.window.incoming(64, 4, 1, 1)]


def test_graphs_know_the_same_addresses_after_a_peer_was_replaced(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        assert port.lasting
        group.forward(port, 1, 3)
        before = parts(link_of(port))
        group.stop_ffn()
        assert within(5, port.lost)
        group.start_ffn()
        port.rejoin()
        assert parts(link_of(port)) == before
        group.forward(port, 2, 4)


def test_a_peer_that_was_given_up_writes_to_nobody(deploy) -> None:
    """It has the memory of its own connection still, and answers late."""
    with deploy() as group:
        group.limits(timeout_s=0.3)
        ffn = stepped(group)
        port = group.open_attention()
        step = begun(group, port)
        gathered = next_step(ffn)
        old = gathered.members[0].epoch
        work = ffn.take(gathered, 0, 0)
        assert work is not None
        port.recv(step, 0, group.rows(4))
        with pytest.raises(PeerLost, match=r"did not send layer 0, stage 0 \(4 rows\) within 0.3 s by the device's"):
            port.witness()()
        port.rejoin()
        again = Step(2, Mode.EAGER, (4,))
        port.begin(again)
        hidden, out = group.rows(4), group.rows(4)
        port.send(again, 0, hidden)
        ffn.send(work, torch.full_like(work.hidden, 99))  # late, on the old connection
        gathered = next_step(ffn)
        assert gathered.members[0].epoch > old
        serving = threading.Thread(target=serve, args=(ffn, gathered))
        serving.start()
        port.recv(again, 0, out)
        assert torch.equal(out, answer_of(hidden, 0, 0))
        for layer in range(1, LAYERS):
            group.exchange(port, again, layer)
        serving.join(10)
        port.witness()()
        ffn.close()


def test_rows_of_another_exchange_are_an_error(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        group.compute = lambda _rank, _work: None  # it says nothing
        port = group.open_attention()
        step = Step(1, Mode.EAGER, (4,))
        port.begin(step)
        link = link_of(port)
        slot = link.window.incoming(0, 4, 1, 0)  # layer 1 comes in the place of layer 0
        rows = group.rows(4)
        port.send(step, 0, rows)
        FakeMoves(FakeDriver(), 1.0).put(
            [slot._replace(start=rows.data_ptr(), to=slot.start, counts=fresh(), over=fresh())], 0
        )
        port.recv(step, 0, rows)
        with pytest.raises(
            PeerLost, match=r"it sent layer 1, stage 0 \(4 rows\) while layer 0, stage 0 \(4 rows\) was awaited"
        ):
            port.witness()()


def fresh() -> int:
    """A word at zero that nobody frees."""
    return FakeDriver.own(_keeper, 4)


_keeper = FakeDriver()


def test_batches_of_one_rank_are_computed_where_they_arrive(deploy) -> None:
    with deploy(hidden=WIDE) as group:
        ffn = stepped(group)
        port = group.open_attention()
        for seq, rows in ((1, 16), (2, 2)):
            step = Step(seq, Mode.EAGER, (rows,))
            port.begin(step)
            port.send(step, 0, group.rows(rows))
            work = ffn.take(next_step(ffn), 0, 0)
            assert work is not None
            assert work.hidden.data_ptr() != ffn._rooms[0].data_ptr()
            ffn.send(work, work.hidden)
            port.recv(step, 0, group.rows(rows))
        ffn.close()


@pytest.mark.parametrize("code", sorted(FOR_GOOD))
def test_devices_that_cannot_map_each_other_are_refused_by_both(
    deploy, code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Far(FakeDriver):
        def adopt(self, descriptor: int) -> int:
            raise CallFailed("cuMemImportFromShareableHandle", code)

    with deploy() as group:
        group.start_ffn()
        monkeypatch.setattr(FakeNvlink, "driver", Far)
        with pytest.raises(HandshakeRefused, match=rf"{code}; .* use connector 'nccl-p2p' otherwise"):
            group.open_attention()
        assert within(5, lambda: "the other side refuses: " in caplog.text)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (Shape(16, 4, "bfloat16", 3), r"rows of a multiple of 16 bytes, found 8; use 'nccl-p2p'"),
        (Shape(16, 8, "bfloat16", 3, router=4), r"rows of router logits of a multiple of 16 bytes, found 8; use"),
        (Shape(1 << 20, 8, "bfloat16", 3), r"at most 1048575 tokens, found 1048576"),
        (Shape(16, 8, "bfloat16", 2049), r"at most 2048 layers, found 2049"),
    ],
)
def test_shapes_that_do_not_fit_the_words_are_refused(shape: Shape, told: str) -> None:
    with Group(FakeNvlink, shape) as group, pytest.raises(ValueError, match=told):
        group.build("attention")


def test_closing_gives_all_memory_back(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(CountedDriver):
        pass

    monkeypatch.setattr(FakeNvlink, "driver", Counted)
    with deploy(attention=2) as group:
        group.start_ffn()
        for rank in (0, 1):
            group.forward(group.open_attention(rank), 1, 3)
        assert len(Counted.held) == 8
    assert Counted.held == []
