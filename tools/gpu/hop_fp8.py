"""One side of the benchmark of rows as fp8 on the wire in a process of its own; see bench_hop_fp8.py.

python -m tools.gpu.hop_fp8 '{"role": "attention"|"ffn", "name": N, "rows": R, "hidden": H, "limit_s": S}'
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from afd_connectors.transports.nvlink.fp8 import PackedMoves, plan_of, slots_of
from afd_connectors.transports.nvlink.fp8_reference import rounded
from afd_connectors.transports.nvlink.moves import Moves, Part
from afd_connectors.transports.nvlink.sizes import FLAGS_AT, Plan
from afd_connectors.transports.nvlink.window import Window
from tools.gpu.hop_jobs import serve_jobs
from tools.gpu.hop_kept import KeptSide

TINY = 1e-300


class PackedSide(KeptSide):
    """Two windows to the other process: `hop` and what follows on it go through the one of packed rows."""

    def __init__(self, role: str, name: str, rows: int, hidden: int, limit_s: float) -> None:
        super().__init__(role, name, rows, hidden, limit_s)
        self.plain, self.packed = self.window, Window(self.driver, self.shape, slots_of(self.shape))
        self.as_model, self.width = False, hidden

    def meet(self) -> dict[str, object]:
        """See Side; of both windows."""
        name, answers = self.name, []
        for what, window in (("plain", self.plain), ("packed", self.packed)):
            self.window, self.name = window, f"{name}-{what}"
            answers.append(super().meet())
        self.name = name
        return answers[-1]

    def hop(
        self, rows: int, hidden: int, trips: int, rounds: int, plan: list[object] | None = None, early: bool = True,
        land: bool = True,
    ) -> dict[str, object]:  # fmt: skip
        """See Side."""
        self.as_model, self.window, self.width = False, self.packed, hidden
        return super().hop(rows, hidden, trips, rounds, plan, early, land)

    def model(self, rows: int, hidden: int, trips: int, rounds: int) -> dict[str, object]:
        """`hop` of rows that travel as the model has them."""
        self.as_model, self.window, self.width = True, self.plain, hidden
        return super().hop(rows, hidden, trips, rounds)

    def keep(self, rows: int, hidden: int, trips: int) -> dict[str, object]:
        """See KeptSide."""
        self.as_model, self.window, self.width = False, self.packed, hidden
        return super().keep(rows, hidden, trips)

    def trips(
        self, count: int, trips: int, plan: list[object] | None, *, early: bool, land: bool
    ) -> Callable[[], None]:
        """See Side; packed rows are put where they are wanted on either side."""
        if self.as_model:
            return super().trips(count, trips, plan, early=early, land=land)
        moves = self.moves("bfloat16", plan, early=early)
        rows = count // self.width
        source = self.rows if self.first else self.out
        put, wait = self.parts(rows, self.width, source, self.out)

        def trip() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(trips):
                for do, part in (
                    ((moves.put, put), (moves.wait, wait)) if self.first else ((moves.wait, wait), (moves.put, put))
                ):
                    do((part,), stream)

        return trip

    def moves(self, dtype: str, plan: list[object] | None = None, *, early: bool = True) -> PackedMoves:
        """With a plan other than the usual one."""
        chosen = plan_of if plan is None else lambda _rows, _size: Plan(*plan)  # type: ignore[arg-type]
        return PackedMoves(self.driver, Moves(self.driver, self.limit_s), self.limit_s, dtype, chosen, early=early)

    def parts(self, rows: int, hidden: int, source: Tensor, out: Tensor) -> tuple[Part, Part]:
        """(what puts, what waits) of rows of a width."""
        put = self.packed.outgoing(source.data_ptr(), rows, 0, 0)
        wait = self.packed.incoming(out.data_ptr(), rows, 0, 0)
        size, scales = 2 * rows * hidden, self.packed.slots.scales - FLAGS_AT  # as fp8 also where that does not pay
        return put._replace(size=size, scales=put.flags + scales), wait._replace(size=size, scales=wait.flags + scales)

    def right(self, count: int) -> bool:
        """See Side; packed rows come back rounded twice."""
        if self.as_model or not self.first:
            return super().right(count)
        rows = self.rows[:count].view(-1, self.width)
        return torch.equal(self.out[:count].view(-1, self.width), rounded(rounded(rows)))

    def arrive(
        self, rows: int, hidden: int, kind: str, dtype: str, plan: list[object] | None = None
    ) -> dict[str, object]:
        """One message of rows that both sides can make: whether it arrives as the reference says, and how far off."""
        given = made(rows, hidden, kind, getattr(torch, dtype))
        out = torch.zeros_like(given)
        put, wait = self.parts(rows, hidden, given, out)
        moves = self.moves(dtype, plan)
        stream = torch.cuda.current_stream().cuda_stream
        if self.first:
            moves.put((put,), stream)
        else:
            moves.wait((wait,), stream)
        torch.cuda.synchronize()
        if self.first:
            return {"error": list(self.packed.error())}
        right = torch.equal(out.isnan(), rounded(given).isnan())
        right = right and torch.equal(out.nan_to_num(), rounded(given).nan_to_num())
        return {"right": right, "error": list(self.packed.error()), **off(given, out)}


def made(rows: int, hidden: int, kind: str, dtype: torch.dtype) -> Tensor:
    """Rows by their distribution, the same in every process of a device type.

    heavy: Student's t with 2 degrees of freedom; outliers: normal, with one channel in 512 a hundred times as large;
    odd: rows of zeros, of the smallest numbers, and with infinities and NaN among the rest.
    """
    source = torch.Generator("cuda").manual_seed(7)
    found = torch.randn(rows, hidden, device="cuda", generator=source)
    if kind == "heavy":
        other = torch.randn(2, rows, hidden, device="cuda", generator=source)
        found /= other.square().sum(0).div_(2).sqrt_()
    elif kind == "outliers":
        found[:, ::512] *= 100
    elif kind == "odd":
        found[0::5] = 0
        found[1::5, hidden // 2] = torch.inf
        found[2::5, 0] = torch.nan
        found[3::5] *= 1e-39
        found[1::5, 0] = -torch.inf
    return found.clamp(-60000, 60000).to(dtype) if dtype is torch.float16 and kind != "odd" else found.to(dtype)


def off(given: Tensor, found: Tensor) -> dict[str, object]:
    """Relative errors of what arrived: of elements, against the row's largest, of rows by their norm."""
    if not torch.isfinite(given).all() or not given.any():
        return {}
    one, other = given.double(), found.double()
    error, present = (other - one).abs(), one != 0
    elements = error[present] / one[present].abs()
    rows = error.norm(dim=1) / one.norm(dim=1).clamp_min(TINY)
    return {
        "mean": float(elements.mean()),
        "most": float(elements.max()),
        "most_of_row": float((error / one.abs().amax(1, keepdim=True).clamp_min(TINY)).max()),
        "norm": float(rows.mean()),
        "most_norm": float(rows.max()),
        "zeroed": float((other[present] == 0).double().mean()),
    }


if __name__ == "__main__":
    serve_jobs(PackedSide)
