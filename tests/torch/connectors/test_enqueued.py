"""Device transports' protocol on CPU tensors: steps steer, rows of all peers are one batch, a lost peer ends all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from afd_connectors.errors import DeadlineExceeded, PeerLost
from afd_connectors.ports import Connector
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.free import free_port
from afd_connectors.testing.group import Group, within
from afd_connectors.transports.enqueued.lines import Lines
from tests.support.fake_nccl import FakeNccl, FakeP2p
from tests.support.fake_nvlink import FakeMoves, FakeNvlink
from tests.support.stepped import LAYERS, abandoned, begun, next_step, run_all, serve, stepped


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """By transport, how many transfers each call enqueued."""
    library = FakeNccl()
    monkeypatch.setattr(FakeP2p, "library", library)
    monkeypatch.setattr(FakeMoves, "launches", [])
    return {FakeP2p.name: library.groups, FakeNvlink.name: FakeMoves.launches}


@pytest.fixture(params=[FakeP2p, FakeNvlink], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest, together: dict[str, list[int]]) -> type[Connector]:
    found: type[Connector] = request.param
    return found


@pytest.fixture
def deploy(kind: type[Connector]) -> Callable[..., Group]:
    def make(attention: int = 1, ffn: int = 1, stages: int = 2, **extra: object) -> Group:
        shape = Shape(16, 8, "bfloat16", LAYERS, stages)
        return Group(kind, shape, attention=attention, ffn=ffn, extra=extra)

    return make


@pytest.mark.parametrize("tokens", [(5,), (4, 3), (0, 3), (3, 0)])
def test_steps_of_every_shape_come_back(deploy, tokens: tuple[int, ...]) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        for seq in (1, 2):
            step = Step(seq, Mode.EAGER, tokens)
            port.begin(step)
            for layer in range(LAYERS):
                for stage, rows in enumerate(tokens):
                    if rows:
                        group.exchange(port, step, layer, stage)


def test_an_attention_rank_splits_its_rows_over_its_ffn_ranks(deploy, kind, together) -> None:
    with deploy(ffn=3) as group:
        group.start_ffn()
        port = group.open_attention()
        group.forward(port, 1, 7)
        group.forward(port, 2, 2)  # one FFN rank has no rows
        assert 3 in together[kind.name]


def test_rows_of_several_peers_are_one_batch_and_their_receipts_one_group(deploy, kind, together) -> None:
    with deploy(attention=2, gather_ms=1000) as group:
        ffn = stepped(group)
        ports = [group.open_attention(rank) for rank in (0, 1)]
        assert within(5, lambda: all(peer.state == "connected" for peer in ffn.peers()))  # or one's rows come alone
        sizes: list[int] = []

        def drive() -> None:
            served = 0
            while served < 4:  # two ranks, two steps each
                gathered = next_step(ffn)
                sizes.append(serve(ffn, gathered))
                served += len(gathered.members)

        serving = threading.Thread(target=drive)
        steps = [Step(1, Mode.EAGER, (3,)), Step(1, Mode.REPLAY, (4,))]
        for port, step in zip(ports, steps, strict=True):
            port.begin(step)
        serving.start()
        run_all(group, ports, steps)
        steps = [replace(step, seq=2) for step in steps]
        for port, step in zip(ports, steps, strict=True):
            port.begin(step)
        run_all(group, ports, steps)
        serving.join(10)
        assert sizes == [7 * LAYERS, 7 * LAYERS]
        assert [count for count in together[kind.name] if count > 1] == [2] * 4 * LAYERS
        ffn.close()


def test_modes_and_epochs_reach_the_ffn_role(deploy) -> None:
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        for seq, mode in enumerate((Mode.WARMUP, Mode.CAPTURE, Mode.REPLAY), start=1):
            port.begin(Step(seq, mode, (4,)))
            gathered = next_step(ffn)
            (member,) = gathered.members
            assert (member.step.mode, member.step.tokens, member.epoch) == (mode, (4,), 1)
            assert (gathered.capture, gathered.replay) == (mode is Mode.CAPTURE, mode is Mode.REPLAY)
        assert dict(ffn.epochs()) == {0: 1}
        port.close()
        assert within(5, lambda: ffn.next_step(wait_s=0.05) is None and not ffn.epochs())
        again = group.open_attention()
        again.begin(Step(1, Mode.EAGER, (2,)))
        assert next_step(ffn).members[0].epoch == 2
        ffn.close()


def test_a_rank_whose_rows_another_one_exchanges_is_not_waited_for(deploy) -> None:
    """As of a tensor-parallel attention group, whose later ranks announce steps without rows."""
    with deploy(attention=2, gather_ms=1000) as group:
        group.start_ffn()
        first, second = (group.open_attention(rank) for rank in (0, 1))
        for seq in (1, 2):
            second.begin(Step(seq, Mode.EAGER, (0,)))
            group.forward(first, seq, 3)
        second.begin(Step(3, Mode.CAPTURE, (0,)))
        group.forward(first, 3, 2)
        assert [work.hidden.shape[0] for _, work, _ in group.works] == [3, 3, 3, 3, 3, 3, 2, 2, 2]


def test_a_capture_moves_no_rows_and_is_passed_over_by_plain_receivers(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        port.begin(Step(1, Mode.CAPTURE, (4,)))
        group.forward(port, 2, 3)
        assert {work.step.seq for _, work, _ in group.works} == {2}


def test_an_ffn_rank_that_ends_in_a_step_voids_it_within_the_limit(deploy) -> None:
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        assert isinstance(port, DeviceAttentionPort)
        step = begun(group, port)
        threading.Timer(0.2, ffn.close).start()
        began = time.monotonic()
        check = port.witness()
        port.recv(step, 0, group.rows(4))  # ends because the communicators were aborted, with garbage
        assert time.monotonic() - began < 3
        with pytest.raises(PeerLost, match=r"so what this step computed is void .*FFN rank 0"):
            check()


def test_the_next_eager_step_reaches_a_restarted_ffn_rank(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        group.forward(port, 1, 3)
        check = port.witness()
        group.stop_ffn()
        assert within(5, lambda: port.peers()[0].state == "lost")
        group.start_ffn()
        group.forward(port, 2, 3)
        port.witness()()
        with pytest.raises(PeerLost):  # the step of the lost connection stays void
            check()


def test_once_captured_a_lost_rank_voids_steps_until_rejoin(deploy) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        port.begin(Step(1, Mode.CAPTURE, (4,)))
        group.stop_ffn()
        assert within(5, port.lost)
        step = Step(2, Mode.EAGER, (4,))
        port.begin(step)
        for layer in range(LAYERS):  # goes on to its end without the rank, with garbage
            port.send(step, layer, group.rows(4))
            port.recv(step, layer, group.rows(4))
        with pytest.raises(PeerLost, match=r"what this step computed is void \(n.*step 2"):
            port.witness()()
        capture = Step(3, Mode.CAPTURE, (4,))
        port.begin(capture)
        with pytest.raises(PeerLost):  # no graph without an exchange
            port.send(capture, 0, group.rows(4))
        group.start_ffn()
        port.rejoin()
        assert not port.lost()
        group.forward(port, 4, 3)
        port.witness()()


def test_a_void_step_is_run_again_on_a_standby(deploy) -> None:
    place = free_port()
    with deploy(standby_addresses=[f"127.0.0.1:{place}"]) as group, deploy() as other:
        other.settings = replace(other.settings, port=place)
        ffn = stepped(group)
        port = group.open_attention()
        step = begun(group, port)
        other.start_ffn()
        ffn.close()
        port.recv(step, 0, group.rows(4))
        assert within(5, port.lost)
        with pytest.raises(PeerLost):
            port.witness()()
        began = time.monotonic()
        port.rejoin()
        group.forward(port, 2, 4)
        port.witness()()
        assert time.monotonic() - began < 1.5
        assert port.peers()[0].address == f"127.0.0.1:{place}"


def test_a_rank_that_stays_away_is_an_error_in_time(deploy) -> None:
    with deploy() as group:
        group.limits(recovery_timeout_s=1.0)
        port = abandoned(group)
        began = time.monotonic()
        with pytest.raises(PeerLost, match=r"did not reach FFN rank 0 at .* within 1 s"):
            port.rejoin()
        assert time.monotonic() - began < 4


def test_a_rank_that_lives_and_does_not_answer_is_lost_in_time(deploy) -> None:
    with deploy() as group:
        group.limits(timeout_s=1.2)
        ffn = stepped(group)
        port = group.open_attention()
        step = begun(group, port)
        time.sleep(1.5)
        assert not port.lost()  # nobody waits for the device yet
        began = time.monotonic()
        with port.awaiting():
            port.recv(step, 0, group.rows(4))
        assert 1 < time.monotonic() - began < 4
        with pytest.raises(PeerLost, match=r"has not answered for 1.2 s|within 1.2 s by the device's clock"):
            port.witness()()
        ffn.close()


def test_a_lost_peer_does_not_disturb_the_other(deploy) -> None:
    with deploy(attention=2, gather_ms=0) as group:
        group.start_ffn()
        gone, stays = (group.open_attention(rank) for rank in (0, 1))
        step = Step(1, Mode.EAGER, (3,))
        gone.begin(step)  # the FFN rank now waits for rows that never come
        time.sleep(0.2)
        gone.close()
        group.forward(stays, 1, 4)


def test_a_silent_ffn_rank_is_lost_after_timeout_s(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    with deploy() as group:
        group.limits(timeout_s=1.2)
        ffn = stepped(group)
        monkeypatch.setattr(ffn._guests, "beat", lambda _event: None)
        port = group.open_attention()
        assert within(6, lambda: port.peers()[0].state == "lost")
        ffn.close()


def test_nobody_there_is_an_error_in_time(deploy) -> None:
    with deploy() as group:
        group.limits(join_timeout_s=1.0)
        with pytest.raises(DeadlineExceeded, match=r"did not reach FFN rank 0 .* within 1 s"):
            group.open_attention()


def test_answers_must_fit(deploy) -> None:
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        step = begun(group, port)
        gathered = next_step(ffn)
        work = ffn.take(gathered, 0, 0)
        assert work is not None
        with pytest.raises(ValueError, match=r"the answer must be \[4, 8\] bfloat16, found \[3, 8\]"):
            ffn.send(work, group.rows(3))
        with pytest.raises(ValueError, match="out must be contiguous"):
            port.recv(step, 0, torch.empty((8, 4), dtype=torch.bfloat16).T)
        ffn.close()


def test_waits_of_several_threads_are_each_limited() -> None:
    """One that ends takes the limit from none that goes on."""
    lines = object.__new__(Lines)
    lines._awaited = {}
    with lines.awaiting():
        with lines.awaiting():
            assert len(lines._awaited) == 2
        assert len(lines._awaited) == 1
    assert not lines._awaited
