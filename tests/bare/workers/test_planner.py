"""The planner's arithmetic against cases worked out by hand, and what must hold whatever the times are."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_models.memory import Split, sizes
from afd_models.pieces import TRAITS
from afd_workers.cli import main
from afd_workers.commands.plan import make
from afd_workers.planner.deployment import Deployment
from afd_workers.planner.device import H200
from afd_workers.planner.forecast import Forecast, Limits, Load, Planner
from afd_workers.planner.measured import CONTEXT, read
from afd_workers.planner.model import Model, Role
from afd_workers.planner.times import Estimated, Measured, Point
from tools.gpu import step_file
from tools.gpu.setups import DIMENSIONS
from tools.toy_checkpoint import FAMILIES

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
#: Attention 1 GiB, experts 9 GiB; a token of context takes 1 MiB.
MODEL = Model(
    layers=10, row=4096.0, kv=float(1 << 20), experts=8, taken=2, context_flops=0.0, latent=False, whole=10.0 * GIB,
    attention=Role(1.0 * GIB, 1.0 * GIB, 0.0, 0.0), ffn=Role(9.0 * GIB, 0.0, 9.0 * GIB, 0.0),
)  # fmt: skip
DEVICE = replace(H200, memory=64.0 * GIB, workspace=1.0 * GIB)
LIMITS = Limits(utilization=1.0, rows=4096)
NAMES = ("native1", "native4", "dp4ep", "1A1F", "2A2F", "3A1F", "1A3F", "1A1F-tp2-ep2")
SPLITS = ("1A1F", "2A1F", "2A2F", "3A1F", "1A3F", "7A1F", "1A1F-tp2-ep2")
ROWS = st.integers(1, 2048)
KNOWN = [name for name, family in FAMILIES.items() if family.config["architectures"][0] in TRAITS]


@dataclass(frozen=True)
class Flat:
    """Attention takes a fixed time a row, the FFN the same whatever it is given, which decode nearly does."""

    a_row: float
    t: float
    h: float = 0.0
    prompts: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def attention(self, rows: float, context: float, tp: int = 1) -> float:
        return self.a_row * rows / tp

    def ffn(self, rows: float, ep: int = 1, dp: int = 1) -> float:
        return self.t / (ep * dp)

    def hop(self, rows: float) -> float:
        return self.h if rows else 0.0

    def prompt(self, length: float, tp: int = 1, ranks: int = 1) -> tuple[float, float, float]:
        return self.prompts


def planner(times: object, device: object = DEVICE, limits: Limits = LIMITS, model: Model = MODEL) -> Planner:
    return Planner(lambda _tp, _ep, _dp: model, times, device, limits)


def per_device(found: Forecast) -> float:
    return found.tokens_s / found.deployment.devices


def forecast(plan: Planner, name: str, load: Load, *, overlap: bool = False) -> Forecast:
    return plan.forecast(Deployment.parse(name), load, overlap=overlap)


class TestByHand:
    """Round numbers: 100 rows a rank, attention 20 ms for them, FFN 10 ms, so that attention takes twice as long."""

    TIMES = Flat(a_row=0.2e-3, t=10e-3)

    def test_replicas(self) -> None:
        found = forecast(planner(self.TIMES), "native4", Load(1, 2, 400))
        assert found.tokens_s == pytest.approx(400 / 0.030)
        assert found.tpot_ms == pytest.approx(30)
        assert found.bound == "attention"

    @pytest.mark.parametrize(("ranks", "gain"), [(1, 0.75), (3, 1.125), (7, 1.3125)])
    def test_the_gain_over_replicas_where_attention_takes_twice_the_ffns_time(self, ranks: int, gain: float) -> None:
        """M / (M + 1) x (t_a + T) / max(t_a, 2T) with t_a = 2T, of the same devices."""
        plan = planner(self.TIMES, model=replace(MODEL, layers=1 << 30))  # the first layer is nothing then
        split = forecast(plan, f"{ranks}A1F", Load(1, 2, 100 * ranks), overlap=True)
        replicas = forecast(plan, f"native{ranks + 1}", Load(1, 2, 100 * (ranks + 1)))
        assert per_device(split) / per_device(replicas) == pytest.approx(gain)

    def test_without_overlap_the_terms_add_up(self) -> None:
        plan = planner(Flat(0.2e-3, 10e-3, h=50e-6))
        found = forecast(plan, "3A1F", Load(1, 2, 300))
        assert found.step_s == pytest.approx(0.020 + 0.010 + 2 * 10 * 50e-6)
        assert (found.terms.attention, found.terms.ffn) == (pytest.approx(0.020), pytest.approx(0.010))
        assert found.terms.transfer == pytest.approx(1e-3)

    def test_a_stage_cannot_be_faster_than_its_way(self) -> None:
        """Half of attention, the FFN and 20 hops of 1 ms take 40 ms, longer than either role is busy; and a layer."""
        found = forecast(planner(Flat(0.2e-3, 10e-3, h=1e-3)), "1A1F", Load(1, 2, 100), overlap=True)
        assert found.step_s == pytest.approx(0.010 + 0.010 + 0.020 + 0.001)
        assert found.bound == "one stage's way"

    def test_an_ffn_that_takes_longest_bounds_overlap(self) -> None:
        found = forecast(planner(Flat(0.05e-3, 10e-3)), "1A1F", Load(1, 2, 100), overlap=True)
        assert found.step_s == pytest.approx(2 * 0.010 + 0.0025 / 10)
        assert found.bound == "FFN"

    def test_expert_parallelism_divides_the_experts_and_pays_two_collectives_a_layer(self) -> None:
        found = forecast(planner(Flat(0.2e-3, 12e-3, h=20e-6)), "dp4ep", Load(1, 2, 400))
        assert found.step_s == pytest.approx(0.020 + 0.003 + 2 * 10 * 20e-6)

    def test_prompts_are_computed_between_steps(self) -> None:
        """100 requests with 40 tokens in and 20 out bring 200 a step; the FFN rank has those of three ranks."""
        times = Flat(0.2e-3, 10e-3, prompts=(1e-6, 2e-6, 0.5e-6))
        native = forecast(planner(times), "native1", Load(40, 20, 100))
        assert native.step_s == pytest.approx(0.030 + 200 * 3e-6)
        split = forecast(planner(times), "3A1F", Load(40, 20, 300))
        assert split.step_s == pytest.approx(0.030 + 200 * 1.5e-6 + 600 * 2e-6)

    def test_room_for_the_cache(self) -> None:
        """64 GiB less workspace and weights, a MiB per token: 53 GiB natively, 62 on an attention rank."""
        plan = planner(self.TIMES)
        assert plan.kv_tokens(Deployment.parse("native2")) == 53 * 1024
        assert plan.kv_tokens(Deployment.parse("3A1F")) == 62 * 1024
        native, split = (forecast(plan, name, Load(1000, 48, 300)) for name in ("native1", "1A1F"))
        assert (native.rows, split.rows) == (53, 62)
        assert (native.bound, split.bound) == ("KV room", "KV room")
        assert forecast(plan, "native1", Load(1000, 48, 53)).bound != "KV room"

    def test_what_does_not_fit_gives_nothing(self) -> None:
        small = replace(DEVICE, memory=9.5 * GIB)
        for name in ("native1", "1A1F"):
            found = forecast(planner(self.TIMES, small), name, Load(1, 2, 10))
            assert (found.tokens_s, found.bound) == (0.0, "memory")

    def test_servers_have_their_limits(self) -> None:
        rows = forecast(planner(self.TIMES, limits=Limits(1.0, rows=50)), "native1", Load(1, 2, 100))
        assert (rows.rows, rows.bound) == (50, "rows per server")
        front = forecast(
            planner(self.TIMES, limits=Limits(1.0, 4096, front_tokens_s=1000.0)), "native2", Load(1, 2, 200)
        )
        assert (front.tokens_s, front.tpot_ms, front.bound) == (2000.0, pytest.approx(100.0), "API servers")


class TestWhateverTheTimes:
    @given(st.sampled_from(NAMES), ROWS, st.floats(0, 1e-3), st.floats(1e-4, 0.1), st.floats(0, 1e-3), st.booleans())
    def test_longer_hops_never_help(self, name: str, rows: int, a: float, t: float, h: float, overlap: bool) -> None:
        overlap = overlap and name in SPLITS
        load = Load(16, 16, rows + 8)
        near, far = (forecast(planner(Flat(a, t, hop)), name, load, overlap=overlap) for hop in (0.0, h))
        assert far.tokens_s <= near.tokens_s * (1 + 1e-9)

    @given(st.floats(1e-6, 1e-3), st.floats(1e-4, 0.1), ROWS)
    def test_one_attention_and_one_ffn_device_never_beat_two_replicas(self, a: float, t: float, rows: int) -> None:
        """Where memory does not matter and the FFN takes as long whatever its rows."""
        plan, load = planner(Flat(a, t), limits=Limits(1.0, 1 << 20)), Load(0, 1, 2 * rows)
        replicas = forecast(plan, "native2", load)
        for overlap in (False, True):
            assert forecast(plan, "1A1F", load, overlap=overlap).tokens_s <= replicas.tokens_s * (1 + 1e-9)

    @given(st.sampled_from(SPLITS), ROWS, st.floats(1e-6, 1e-3), st.floats(1e-4, 0.1), st.floats(0, 1e-3))
    def test_overlap_is_bounded_by_either_role_and_by_no_overlap_with_twice_the_ffn(
        self, name: str, rows: int, a: float, t: float, h: float
    ) -> None:
        plan, load = planner(Flat(a, t, h)), Load(0, 1, rows)
        serial, both = forecast(plan, name, load), forecast(plan, name, load, overlap=True)
        assert both.step_s >= max(serial.terms.attention, 2 * serial.terms.ffn)
        longest = serial.step_s + serial.terms.ffn + serial.terms.transfer + serial.terms.attention
        assert both.step_s <= longest * (1 + 1e-9)

    @given(st.sampled_from(("v2-lite", "qwen3-30b")), ROWS, ROWS, st.integers(0, 30000), st.sampled_from((1, 2)))
    def test_estimates_and_measured_lines_never_shrink(
        self, name: str, one: int, other: int, context: int, shared: int
    ) -> None:
        """Measured roles that are shared follow the estimate's proportion, which may fall faster than they rise."""
        low, high = sorted((one, other))
        estimate, measured = TIMES[name]
        for times, ranks in ((estimate, shared), (measured, 1)):
            assert 0 < times.ffn(low, ranks) <= times.ffn(high, ranks) * (1 + 1e-9)
            assert 0 < times.hop(low) <= times.hop(high)
            least = times.attention(low, context, ranks)
            assert 0 < least <= times.attention(high, context, ranks) * (1 + 1e-9)
            assert least <= times.attention(low, context + 1000, ranks)
        assert measured.ffn(low, 2) < measured.ffn(low)

    @given(st.sampled_from(("v2-lite", "qwen3-30b")), st.integers(1, 8), ROWS)
    def test_as_many_replicas_give_as_many_times_the_tokens(self, name: str, count: int, rows: int) -> None:
        plan = PLANS[name]
        one = forecast(plan, "native1", Load(256, 256, rows))
        several = forecast(plan, f"native{count}", Load(256, 256, rows * count))
        assert several.tokens_s == pytest.approx(count * one.tokens_s)
        assert several.tpot_ms == pytest.approx(one.tpot_ms)

    @given(st.sampled_from(NAMES), st.floats(1, 512))
    def test_more_memory_never_gives_less(self, name: str, gib: float) -> None:
        load, times = Load(1000, 48, 800), Flat(0.2e-3, 10e-3)
        small, large = (
            forecast(planner(times, replace(DEVICE, memory=size * GIB)), name, load) for size in (gib, gib + 32)
        )
        assert small.kv_tokens <= large.kv_tokens
        assert small.tokens_s <= large.tokens_s * (1 + 1e-9)

    @given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 8), st.integers(1, 8))
    def test_every_name_is_read_as_it_is_written(self, attention: int, ffn: int, tp: int, ep: int) -> None:
        wanted = Deployment("split", attention, ffn, tp, ep)
        assert Deployment.parse(str(wanted)) == wanted
        assert wanted.devices == attention * tp + ffn * ep
        for name in (f"native{attention}", f"dp{attention}ep"):
            assert str(Deployment.parse(name)) == name
            assert Deployment.parse(name).devices == attention

    @given(st.integers(1, 40), st.integers(1, 40), ROWS)
    def test_no_row_is_lost_between_the_roles(self, attention: int, ffn: int, rows: int) -> None:
        fullest = Deployment("split", attention, ffn).at_ffn(rows)
        assert rows * attention / ffn <= fullest * (1 + 1e-9)
        assert fullest <= rows * -(-attention // ffn)


def plan_of(name: str) -> Planner:
    return make(DIMENSIONS[name], Limits(0.85, 512))


PLANS = {name: plan_of(name) for name in DIMENSIONS}
POINTS = [
    Point(rows, context, 1e-3 + 1e-5 * rows + 1e-8 * rows * context, 2e-3 + 1e-5 * rows, 1e-5 + 1e-8 * rows)
    for rows in (1, 64, 512)
    for context in (50.0, 1000.0)
]


def both_ways(plan: Planner) -> tuple[Estimated, Measured]:
    assert isinstance(plan.times, Estimated)
    return plan.times, Measured(POINTS, plan.times)


TIMES = {name: both_ways(plan) for name, plan in PLANS.items()}


@pytest.mark.parametrize("rows", [1, 64, 512])
def test_measured_sizes_are_taken_as_they_are(rows: int) -> None:
    times = TIMES["v2-lite"][1]
    assert times.attention(rows, 50.0) == pytest.approx(1e-3 + 1e-5 * rows + 5e-7 * rows)
    assert times.attention(rows, 525.0) == pytest.approx(1e-3 + 1e-5 * rows + 5.25e-6 * rows)
    assert times.ffn(rows) == pytest.approx(2e-3 + 1e-5 * rows)
    assert times.hop(rows) == pytest.approx(1e-5 + 1e-8 * rows)


@pytest.mark.parametrize(
    ("name", "deployment", "tokens"),
    [
        ("v2-lite", "native2", 3_006_336), ("v2-lite", "dp2ep", 3_459_024), ("v2-lite", "1A1F", 3_944_272),
        ("qwen3-30b", "native2", 655_280), ("qwen3-30b", "1A1F", 1_238_544),
    ],
)  # fmt: skip
def test_room_is_within_two_percent_of_what_vllm_measured(name: str, deployment: str, tokens: int) -> None:
    """docs/benchmarks/gpu.md, H200, 0.85 of its memory."""
    assert PLANS[name].kv_tokens(Deployment.parse(deployment)) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize("name", ["v2-lite", "qwen3-30b"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_are_those_of_the_sizes(name: str, ranks: int) -> None:
    """Ranks of an FFN server share all its parts, ranks of native data parallelism the experts alone."""
    config = DIMENSIONS[name]
    one, server, native = (
        sizes(config, split)
        for split in (Split(), Split(ffn_tp=ranks, expert_parallel=True), Split(data_parallel=ranks))
    )
    model = Model.of(config, ffn_ep=ranks)
    assert (model.ffn.weights, model.ffn.expert_bytes) == (server.ffn, one.experts / ranks)
    assert model.ffn.read == server.ffn - server.experts
    model = Model.of(config, dp=ranks)
    assert (model.whole, model.ffn.read) == (native.whole, one.ffn - one.experts)
    assert native.whole == one.whole - one.experts * (ranks - 1) / ranks
    assert server.ffn <= native.ffn


@pytest.mark.parametrize("name", KNOWN)
def test_every_family_whose_sizes_are_known_can_be_planned(name: str) -> None:
    plan = make({**FAMILIES[name].config, "num_hidden_layers": 4}, Limits(), memory_gib=8)
    for deployment in NAMES:
        found = forecast(plan, deployment, Load(16, 16, 64))
        assert found.tokens_s > 0
        assert math.isfinite(found.tokens_s)


def test_a_benchmarks_rows_are_read(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    rows = [
        {"rows": 1.0, "native": 3.0, "attention": 1.5, "ffn": 2.0, "hop_us": 8.0},
        {
            "rows": 64.0,
            "attention": 5.0,
            "attention_device": 4.0,
            "ffn": 2.0,
            "hop_us": 9,
            "hop_wire_us": 7,
            "context": 9,
        },
    ]
    file.write_text(json.dumps(rows))
    first, second = read(file).points
    assert (first.rows, first.context, first.native) == (1, CONTEXT, 3e-3)
    assert first.attention == pytest.approx(1e-3), "native less the FFN role is less than attention with its host"
    assert second == Point(64, 9.0, 4e-3, 2e-3, pytest.approx(7e-6))
    assert read(file).model is None
    file.write_text(json.dumps({"note": "n", "rows": rows, "model": {"experts": 64}}))
    assert (read(file).points, read(file).model) == ([first, second], {"experts": 64})


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("", "Expected the JSON of a benchmark of steps"),
        ("[]", "Expected a list of measured rows"),
        ('[{"rows": 1}]', "Expected ffn in every row"),
        ('[{"rows": 1, "ffn": -1}]', "Expected a number from 0 to 1e\\+09 as ffn"),
        ('[{"rows": 1, "ffn": NaN}]', "Expected a number from 0 to 1e\\+09 as ffn"),
        ('[{"rows": 1, "ffn": 1e308}]', "Expected a number from 0 to 1e\\+09 as ffn"),
        ('[{"rows": 1, "ffn": 1' + "0" * 400 + "}]", "as ffn .*, found 1000.*000: measure it again"),
        ("[" * 100_000, "Expected the JSON of a benchmark of steps"),
        ('{"model": "v2-lite", "rows": [{}]}', """Expected the dimensions of a model as "model" .* found 'v2-lite'"""),
    ],
)
def test_a_file_without_times_is_refused(written: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(written)
    with pytest.raises(ValueError, match=sentence):
        read(file)


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["native0", "4native", "dp4", "3A", "3A1F-ep2-tp2", "3A1F-tp0", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Expected a deployment such as native4"):
        Deployment.parse(name)


def test_overlap_is_for_splits() -> None:
    with pytest.raises(ValueError, match="Expected a split such as 3A1F for overlap, found native1"):
        forecast(PLANS["v2-lite"], "native1", Load(1, 1, 1), overlap=True)


class TestCommand:
    def test_it_prints_a_line_per_deployment_mode_and_load(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        command = ["plan", str(tmp_path), "--deploy", "native4", "3A1F", "--concurrency", "256", "512"]
        assert main(command) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.split()[0] == "deployment"
        assert [line.split()[:3] for line in lines[:6]] == [
            [name, overlap, requests]
            for requests in ("256", "512")
            for name, overlap in (("native4", "no"), ("3A1F", "no"), ("3A1F", "yes"))
        ]
        assert all(math.isfinite(float(line.split()[3])) for line in lines[:6])

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            (["--device", "abacus"], "Expected a device of h200"),
            (["--concurrency", "0"], "Expected concurrency from 1 to"),
            (["--deploy", "none"], "Expected a deployment such as"),
            (["--times", "/nowhere"], "Expected the JSON of a benchmark of steps"),
            (["--memory-gib", "0"], "Expected memory of a device above 0"),
            (["--memory-gib", "inf"], "Expected memory of a device above 0"),
            (["--prompt", "9" * 400], "Expected prompt from 0 to 1000000000, found 9999"),
            (["--output", "9" * 400], "Expected output from 1 to 1000000000, found 9999"),
            (["--concurrency", "9" * 400], "Expected concurrency from 1 to 1000000000, found 9999"),
            (["--max-rows", "9" * 400], "Expected rows of a rank from 1 to 1000000000, found 9999"),
            (["--max-rows", "-5"], "Expected rows of a rank from 1 to 1000000000, found -5"),
            (["--utilization", "nan"], "Expected utilization above 0, found nan"),
            (["--utilization", "0"], "Expected utilization above 0, found 0.0"),
            (["--utilization", "90"], "Expected utilization from 0 to 1, found 90.0"),
            (["--front", "nan"], "Expected tokens per second of an API server from 0 to 1000000000, found nan"),
            (["--front", "-1"], "Expected tokens per second of an API server from 0 to 1000000000, found -1.0"),
            (["--deploy", "1A2F-tp2"], "Expected one FFN server for the 2 processes of an attention replica"),
        ],
    )
    def test_slips_are_said(
        self, more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        assert main(["plan", str(tmp_path), *more]) == 2
        assert sentence in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({}, ""),
            ({"num_experts_per_tok": 8}, "whose experts_per_token is 8, in .*step.json, found 6"),
            ({"num_hidden_layers": 30}, "whose exchanges is 30, in .*step.json, found 27"),
            ({"vocab_size": 1024}, r"whose weight_bytes is \d+, in .*step.json, found 31526214656"),
        ],
    )
    def test_times_of_another_model_are_refused(
        self, change: dict[str, int], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        row = {"rows": 64.0, "native": 9.0, "attention": 4.0, "ffn": 8.0, "hop_us": 5.0}
        step_file.write(tmp_path / "step.json", "v2-lite", [row])
        (tmp_path / "config.json").write_text(json.dumps({**DIMENSIONS["v2-lite"], **change}))
        command = ["plan", str(tmp_path), "--times", str(tmp_path / "step.json"), "--deploy", "native1"]
        code, said = main(command), capsys.readouterr()
        if not sentence:
            assert (code, said.err) == (0, "")
            return
        assert (code, said.out) == (2, "")
        assert re.fullmatch(
            rf"afd plan: Expected steps of the model that is planned for, {sentence}: give this model's steps, or "
            r"leave --times out for estimates\.\n",
            said.err,
        )

    def test_times_that_do_not_say_whose_they_are_are_taken_with_a_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        row = {"rows": 64.0, "attention": 4.0, "ffn": 8.0, "hop_us": 5.0}
        (tmp_path / "step.json").write_text(json.dumps([row]))
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        assert main(["plan", str(tmp_path), "--times", str(tmp_path / "step.json"), "--deploy", "native1"]) == 0
        said = capsys.readouterr()
        assert said.err == (
            f"afd plan: {tmp_path / 'step.json'} does not say whose steps it holds: they are taken for this model's.\n"
        )
        assert f"Steps: from {tmp_path / 'step.json'};" in said.out

    def test_roles_of_several_processes_have_no_overlap(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        names = ["1A1F-tp2-ep2", "2A2F-tp2", "1A1F-ep64", "dp3ep"]
        assert main(["plan", str(tmp_path), "--concurrency", "64", "--deploy", *names]) == 0
        _, *lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines[:4]] == [[name, "no"] for name in names]

    def test_more_ranks_than_an_ffn_can_be_shared_by_are_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        assert main(["plan", str(tmp_path), "--deploy", "1A1F-ep200"]) == 2
        assert "divide the width 10944 of model.layers.0.mlp.gate_proj, found 200" in capsys.readouterr().err

    def test_what_does_not_fit_has_no_time_per_token(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DIMENSIONS["v2-lite"]))
        assert main(["plan", str(tmp_path), "--memory-gib", "1", "--concurrency", "64", "--deploy", "native1"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[3:6] == ["0", "0", "-"]

    def test_a_model_without_layers_of_experts_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**DIMENSIONS["v2-lite"], "first_k_dense_replace": 27}))
        assert main(["plan", str(tmp_path)]) == 2
        assert "Expected a model with layers of experts in config.json, found none" in capsys.readouterr().err
