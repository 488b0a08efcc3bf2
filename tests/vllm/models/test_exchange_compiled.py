"""Dynamo traces the exchange by its fake implementation: one graph, nothing reordered, the same values as eagerly."""

from __future__ import annotations

import pytest
import torch

from afd_connectors.step import Mode, Step
from afd_models.exchange import Exchange
from afd_models.kept import Kept
from afd_models.shares import AllRows

WIDTH = 4


class Port:
    """Adds 1 + the layer; keeps the order of calls."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []
        self.steps: list[Step] = []
        self.router: torch.Tensor | None = None

    def begin(self, step: Step) -> None:
        self.steps.append(step)

    def send(
        self, step: Step, layer: int, hidden: torch.Tensor, router: torch.Tensor | None = None, *, stage: int = 0
    ) -> None:
        self.router = router
        self.did.append(("send", layer))
        self.rows = hidden.clone()

    def recv(self, step: Step, layer: int, out: torch.Tensor, *, stage: int = 0) -> None:
        self.did.append(("recv", layer))
        out.copy_(self.rows + layer + 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_model_of_exchanges_compiles_into_one_graph(backend: str) -> None:
    port, exchange = Port(), Exchange()
    exchange.connect(port, 0, AllRows())

    def model(hidden: torch.Tensor) -> torch.Tensor:
        for layer in range(3):
            hidden = hidden + exchange(torch.relu(hidden), layer)
        return hidden

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for seq, rows in enumerate((5, 3, 8), 1):
        hidden = torch.randn(rows, WIDTH)
        port.did.clear()
        torch.testing.assert_close(compiled(hidden), model(hidden))
        assert port.did == [(verb, layer) for _ in range(2) for layer in range(3) for verb in ("send", "recv")]
        assert port.steps[2 * seq - 2].tokens == (rows,)
    assert all(step.mode is Mode.EAGER for step in port.steps)


def test_what_attention_keeps_is_computed_inside_the_exchange() -> None:
    port, exchange = Port(), Exchange()
    exchange.connect(port, 0, AllRows())
    torch.manual_seed(0)
    gate, other = torch.nn.Linear(WIDTH, 3), torch.nn.Linear(WIDTH, WIDTH)

    def shared(rows: torch.Tensor) -> torch.Tensor:
        port.did.append(("shared", 0))
        return other(rows)

    exchange.keep(0, Kept(lambda rows: (gate(rows), None), shared))
    torch._dynamo.reset()
    with torch.inference_mode():
        hidden = torch.randn(5, WIDTH)
        found = torch.compile(lambda rows: exchange(rows, 0), backend="eager", fullgraph=True)(hidden)
        assert torch.equal(found, other(hidden) + (hidden + 1))
        assert port.router is not None
        assert torch.equal(port.router, gate(hidden))
    assert port.did == [("send", 0), ("shared", 0), ("recv", 0)]


def test_the_yield_op_stays_where_it_was_written() -> None:
    from afd_workers import dbo  # registers it  # noqa: F401

    def between(hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        torch.ops.afd.exchange(hidden, out, 0, exchange._handle)
        torch.ops.vllm.manual_dbo_yield(out)
        return out * 2

    port, exchange = Port(), Exchange()
    exchange.connect(port, 0, AllRows())
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    found = torch.compile(between, backend=keep, fullgraph=True)(torch.ones(2, WIDTH))
    assert torch.equal(found, torch.full((2, WIDTH), 4.0))
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [name for name in called if "exchange" in name or "yield" in name] == [
        "afd.exchange", "vllm.manual_dbo_yield",
    ]  # fmt: skip
