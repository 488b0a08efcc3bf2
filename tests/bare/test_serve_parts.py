"""Parts of the benchmarks over HTTP: every server gets its own devices and its place among the ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tools import planner_table
from tools.gpu.serve_parts import Part, Spec, specs
from tools.gpu.setups import DIMENSIONS
from tools.gpu.shapes import SHAPES


def graphs(some: bool) -> Sequence[str]:
    return ("--graphs",) if some else ("--enforce-eager",)


def section(spec: Spec) -> dict[str, object]:
    config: dict[str, dict[str, object]] = json.loads(spec.arguments[spec.arguments.index("--additional-config") + 1])
    return config["afd"]


@pytest.mark.parametrize("name", ["1A1F", "2A2F", "3A1F", "1A3F", "1A1F-tp2-ep2", "2A1F-tp2-ep4", "native4", "dp4ep"])
def test_every_device_is_one_servers(name: str) -> None:
    part = Part.parse(name)
    asked, ffn = specs(part, graphs)
    assert sorted(place for spec in (*asked, *ffn) for place in spec.devices) == list(range(part.devices))
    assert len({spec.name for spec in (*asked, *ffn)}) == len(asked) + len(ffn)


def test_ranks_of_a_split() -> None:
    asked, ffn = specs(Part.parse("2A2F-tp2"), graphs, timeout_s=5.0)
    assert [(section(spec)["role"], section(spec)["rank"]) for spec in (*asked, *ffn)] == [
        ("attention", 0), ("attention", 2), ("ffn", 0), ("ffn", 1),
    ]  # fmt: skip
    for spec in (*asked, *ffn):
        assert (section(spec)["num_attention_ranks"], section(spec)["num_ffn_ranks"]) == (4, 2)
        assert section(spec)["timeout_s"] == 5.0
    assert len({section(spec)["port"] for spec in (*asked, *ffn)}) == 1
    assert all("--graphs" in spec.arguments and "--tensor-parallel-size" in spec.arguments for spec in asked)
    assert all("--enforce-eager" in spec.arguments and "--tensor-parallel-size" not in spec.arguments for spec in ffn)


def test_modes() -> None:
    asked, ffn = specs(Part.parse("3A1F:dbo"), graphs)
    assert all("--enable-dbo" in spec.arguments for spec in (*asked, *ffn))
    asked, _ = specs(Part.parse("3A1F:eager"), graphs)
    assert all("--graphs" not in spec.arguments for spec in asked)
    _, [shared] = specs(Part.parse("1A1F-tp2-ep2"), graphs)
    assert {"--tensor-parallel-size", "--enable-expert-parallel"} < {*shared.arguments}


def test_what_attention_keeps_is_both_roles() -> None:
    part = Part.parse("1A1F:graph+shared+dense")
    assert (str(part), part.slug, part.mode) == ("1A1F:graph+shared+dense", "1A1F-graph-shared-dense", "graph")
    asked, ffn = specs(part, graphs)
    for spec in (*asked, *ffn):
        kept = {key: value for key, value in section(spec).items() if key.endswith("_on_attention")}
        assert kept == {"shared_experts_on_attention": True, "dense_layers_on_attention": True}


def test_native_replicas_are_started_once_for_all_counts() -> None:
    part = Part.parse("native4,1,2")
    assert (part.counts, part.devices, str(part), part.slug) == ((1, 2, 4), 4, "native1,2,4:graph", "native1-2-4-graph")
    asked, ffn = specs(part, graphs)
    assert (len(asked), ffn) == (4, [])


def test_a_part_for_more_devices_says_what_it_needs() -> None:
    part = Part.parse("3A1F")
    assert part.lacking(4) is None
    assert part.lacking(2) == "3A1F:graph needs 4 devices and this host has 2: run it where there are 4."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("3A1F:fast", "Expected one of graph, dbo, eager after the colon"),
        ("native2:dbo", "Expected a split such as 2A2F for dbo"),
        ("1A1F:graph+norms", "Expected words of gate, shared, dense after the mode, found 'norms'"),
        ("native2:graph+shared", "Expected a split such as 1A1F for what attention keeps"),
        ("native1,0", "Expected a deployment such as native4"),
        ("", "Expected a deployment such as native4"),
    ],
)
def test_other_names_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Part.parse(name)


@pytest.mark.parametrize("name", SHAPES)
def test_every_named_load_is_for_so_many_devices(name: str) -> None:
    shape = SHAPES[name]
    assert {Part.parse(each).devices for each in shape.parts} == {2 if name.endswith("2") and name != "v2" else 4}
    assert shape.model in DIMENSIONS
    longest = max(2 * shape.prompt, shape.prompt + shape.output)  # see bench_serve_gpu
    assert longest <= int(str(DIMENSIONS[shape.model]["max_position_embeddings"]))


def test_the_planners_page_is_current() -> None:
    """Else: python -m tools.planner_table."""
    assert planner_table.TARGET.read_text() == planner_table.text()
