"""Rows as fp8 on the wire: how far off they arrive, what stays as it is, who must agree, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from afd_connectors.errors import HandshakeRefused
from afd_connectors.ports import AttentionPort
from afd_connectors.registry import find
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.testing.group import Group, answer_of
from afd_connectors.transports.nvlink import window
from afd_connectors.transports.nvlink.fp8_reference import FLOOR, LARGEST, packed, rounded
from tests.support.fake_nvlink import FakeNvlink
from tests.support.stepped import LAYERS, next_step, stepped

FP8 = {"wire_dtype": "fp8"}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any size are packed."""
    monkeypatch.setattr(window, "PACKED_LEAST", 0)


@pytest.fixture
def deploy() -> Callable[..., Group]:
    def make(
        attention: int = 1, ffn: int = 1, hidden: int = 24, dtype: str = "bfloat16", router: int = 0, **extra: object
    ) -> Group:
        shape = Shape(16, hidden, dtype, LAYERS, 2, router)
        return Group(FakeNvlink, shape, attention=attention, ffn=ffn, extra={**FP8, **extra})

    return make


def wide(group: Group, count: int) -> Tensor:
    return torch.randn(count, group.shape.hidden).to(getattr(torch, group.shape.dtype))


def exchange(port: AttentionPort, step: Step, layer: int, stage: int, hidden: Tensor) -> Tensor:
    out = torch.full_like(hidden, 77)
    port.send(step, layer, hidden, stage=stage)
    port.recv(step, layer, out, stage=stage)
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("hidden", [8, 16, 72])
def test_rows_of_every_width_come_back_about_right(deploy, dtype: str, hidden: int) -> None:
    with deploy(hidden=hidden, dtype=dtype) as group:
        group.start_ffn()
        port = group.open_attention()
        for seq, tokens in enumerate([(5,), (16, 1), (0, 3)], 1):
            step = Step(seq, Mode.EAGER, tokens)
            port.begin(step)
            for layer in range(LAYERS):
                for stage, rows in enumerate(tokens):
                    given_rows = wide(group, rows)
                    out = exchange(port, step, layer, stage, given_rows)
                    if rows:
                        assert torch.equal(out, rounded(answer_of(rounded(given_rows), layer, stage)))
                    right = answer_of(given_rows, layer, stage)
                    most = (2 * given_rows.abs()).amax(1, keepdim=True) + right.abs().amax(1, keepdim=True)
                    assert ((out - right).abs() <= most / 14).all()


@pytest.mark.parametrize("counts", [(2, 1), (1, 3), (2, 3)])
def test_parts_of_several_ranks_are_packed_each_for_itself(deploy, counts: tuple[int, int]) -> None:
    with deploy(*counts) as group:
        group.start_ffn()
        ports = [group.open_attention(rank) for rank in range(counts[0])]
        for rank, port in enumerate(ports):
            step = Step(1, Mode.EAGER, (7 + rank,))
            port.begin(step)
            rows = wide(group, 7 + rank)
            assert torch.equal(exchange(port, step, 0, 0, rows), rounded(answer_of(rounded(rows), 0, 0)))
            for layer in range(1, LAYERS):
                exchange(port, step, layer, 0, rows)


def test_small_messages_stay_as_they_are_and_large_ones_do_not(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "PACKED_LEAST", 5 * 48)
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        for seq, count in enumerate((4, 5, 2, 16), 1):
            step, rows = Step(seq, Mode.EAGER, (count,)), wide(group, count)
            port.begin(step)
            right = rounded(answer_of(rounded(rows), 0, 0)) if count >= 5 else answer_of(rows, 0, 0)
            assert torch.equal(exchange(port, step, 0, 0, rows), right)
            for layer in range(1, LAYERS):
                exchange(port, step, layer, 0, rows)


def test_router_logits_stay_as_they_are(deploy) -> None:
    with deploy(router=8) as group:
        ffn, port = stepped(group), group.open_attention()
        step = Step(1, Mode.EAGER, (5,))
        port.begin(step)
        rows, logits = wide(group, 5), torch.randn(5, 8)
        port.send(step, 0, rows, logits)
        work = ffn.take(next_step(ffn), 0, 0)
        assert work is not None
        assert torch.equal(work.hidden, rounded(rows))
        assert work.router is not None
        assert torch.equal(work.router, logits)
        ffn.close()


def test_rows_are_never_computed_where_they_arrive(deploy) -> None:
    with deploy(hidden=4096) as group:
        ffn, port = stepped(group), group.open_attention()
        step = Step(1, Mode.EAGER, (16,))
        port.begin(step)
        port.send(step, 0, wide(group, 16))
        work = ffn.take(next_step(ffn), 0, 0)
        assert work is not None
        assert work.hidden.data_ptr() == ffn._rooms[0].data_ptr()
        ffn.close()


def test_what_is_not_finite_arrives_as_nan_and_harms_nothing_else() -> None:
    clean = torch.randn(4, 24, dtype=torch.bfloat16)
    rows = clean.clone()
    rows[0], rows[1, 3], rows[2, 5], rows[3, 0] = 0, torch.inf, torch.nan, -torch.inf
    clean[0], clean[1, 3], clean[2, 5], clean[3, 0] = 0, 0, 0, 0
    found = rounded(rows)
    assert torch.equal(found.isnan(), ~rows.isfinite())
    assert torch.equal(found.nan_to_num(), rounded(clean))
    assert not found[0].any()


@settings(deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 40), st.floats(-30, 30), st.integers(0, 1 << 30),
    st.sampled_from([torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_an_element_is_off_by_a_sixteenth_or_a_little_of_the_largest(
    rows: int, hidden: int, power: float, seed: int, dtype: torch.dtype
) -> None:
    source = torch.Generator().manual_seed(seed)
    power = min(power, 15) if dtype is torch.float16 else power
    given_rows = (torch.randn(rows, hidden, generator=source) * 2.0**power).clamp(-6e4, 6e4).to(dtype)
    narrow, scales = packed(given_rows)
    assert narrow.float().abs().max() <= LARGEST
    assert torch.equal(scales, given_rows.float().abs().amax(1).clamp_min(FLOOR) / LARGEST)
    found, one = rounded(given_rows).double(), given_rows.double()
    of_largest = one.abs().amax(1, keepdim=True)
    ulp = 2.0**-24 if dtype is torch.float16 else 0.0
    assert ((found - one).abs() <= one.abs() * (1 / 16 + 1 / 200) + of_largest * 2.0**-18 + ulp).all()


def test_both_roles_must_say_it(deploy) -> None:
    told = r"disagree on wire_dtype: attention has 'fp8', FFN has 'model'; start both roles with the same .*settings"
    with deploy(wire_dtype="model") as group:
        group.start_ffn()
        settings_of = group.build("attention").settings
        with pytest.raises(HandshakeRefused, match=told):
            group.open_attention(settings=settings_of.__class__(port=settings_of.port, extra=FP8))
        group.forward(group.open_attention(), 1, 3)


@pytest.mark.parametrize(
    ("dtype", "value", "told"),
    [
        (
            "float32",
            "fp8",
            r"'nvlink' moves rows as fp8 where the model's are bfloat16 or float16, found float32; leave",
        ),
        ("bfloat16", "e5m2", r"wire_dtype must be 'model' or 'fp8', found 'e5m2'"),
        ("bfloat16", None, r"wire_dtype must be 'model' or 'fp8', found None"),
        ("bfloat16", ["fp8"], r"wire_dtype must be 'model' or 'fp8', found \['fp8'\]"),
    ],
)
def test_what_does_not_travel_as_fp8_is_refused(deploy, dtype: str, value: object, told: str) -> None:
    with deploy(dtype=dtype, wire_dtype=value) as group, pytest.raises(ValueError, match=told):
        group.build("attention")


@pytest.mark.parametrize("name", ["nccl-p2p", "shm", "tcp", "loopback"])
def test_other_connectors_refuse_the_option_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"connector '{name}' .*found option 'wire_dtype'; remove it"):
        find(name).check_options(FP8)


def test_the_log_warns_that_tokens_may_differ(deploy, caplog: pytest.LogCaptureFixture) -> None:
    with deploy() as group:
        group.build("ffn")
    assert "hidden states of 1048577 bytes and more as fp8 (wire_dtype), so tokens may differ" in caplog.text
    caplog.clear()
    with deploy(wire_dtype="model") as group:
        group.build("ffn")
    assert caplog.text == ""


def test_the_reference_and_the_kernels_have_the_same_bounds() -> None:
    source = files("afd_connectors.transports.nvlink").joinpath("fp8.cu").read_text()
    found = dict(re.findall(r"#define (LARGEST|FLOOR) ([\d.e-]+)f", source))
    assert {name: float(value) for name, value in found.items()} == {"LARGEST": LARGEST, "FLOOR": FLOOR}
