"""Who exchanges rows with whom: the only place that does rank arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["attention", "ffn"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's place among the attention and FFN ranks of a deployment.

    Raises ValueError when the role is unknown, a count is below 1 or the rank is outside its role.
    """

    role: Role
    rank: int
    num_attention: int
    num_ffn: int

    def __post_init__(self) -> None:
        if self.role not in ("attention", "ffn"):
            raise ValueError(f"role must be 'attention' or 'ffn', found {self.role!r}; set one of the two.")
        for name, count in (("num_attention", self.num_attention), ("num_ffn", self.num_ffn)):
            if not _whole(count) or count < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, found {count!r}.")
        ranks = self.num_attention if self.role == "attention" else self.num_ffn
        if not _whole(self.rank) or not 0 <= self.rank < ranks:
            raise ValueError(f"the rank of role {self.role} must lie in 0..{ranks - 1}, found {self.rank!r}.")

    @property
    def world_size(self) -> int:
        """Ranks of both roles together."""
        return self.num_attention + self.num_ffn

    @property
    def world_rank(self) -> int:
        """This rank among both roles; FFN ranks come first."""
        return self.rank if self.role == "ffn" else self.num_ffn + self.rank

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks of the other role that this rank exchanges with, ascending.

        The side with more ranks is dealt to the other in contiguous blocks whose sizes differ by at most one.
        """
        ours, theirs = self.num_ffn, self.num_attention
        if self.role == "attention":
            ours, theirs = theirs, ours
        if ours >= theirs:
            return (self.rank * theirs // ours,)
        first, last = -(-self.rank * theirs // ours), -(-(self.rank + 1) * theirs // ours)
        return tuple(range(first, last))

    def split(self, rows: int) -> tuple[tuple[int, int, int], ...]:
        """On attention: (FFN rank, start, stop) blocks that cover 0..rows in order; a block may be empty."""
        if self.role != "attention":
            raise ValueError(f"only attention ranks split rows, this is {self.role} rank {self.rank}.")
        return _blocks(rows, self.peers)

    def share(self, rows: int) -> int:
        """On FFN: how many of the `rows` that one of its attention peers announced come to this rank."""
        if self.role != "ffn":
            raise ValueError(f"only FFN ranks receive a share, this is {self.role} rank {self.rank}.")
        other = Layout("attention", self.peers[0], self.num_attention, self.num_ffn)
        return next(stop - start for peer, start, stop in other.split(rows) if peer == self.rank)


def role_rank(dp_rank: int, pcp_rank: int, tp_rank: int, *, pcp_size: int, tp_size: int) -> int:
    """Rank within a role from the engine's global data-, prefill-context- and tensor-parallel ranks."""
    for name, size in (("pcp_size", pcp_size), ("tp_size", tp_size)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, found {size}.")
    for name, rank, size in (("pcp_rank", pcp_rank, pcp_size), ("tp_rank", tp_rank, tp_size)):
        if not 0 <= rank < size:
            raise ValueError(f"{name} must lie in 0..{size - 1}, found {rank}.")
    if dp_rank < 0:
        raise ValueError(f"dp_rank must be at least 0, found {dp_rank}.")
    return (dp_rank * pcp_size + pcp_rank) * tp_size + tp_rank


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _blocks(rows: int, peers: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    if rows < 0:
        raise ValueError(f"rows must be at least 0, found {rows}.")
    count = len(peers)
    return tuple((peer, i * rows // count, (i + 1) * rows // count) for i, peer in enumerate(peers))
