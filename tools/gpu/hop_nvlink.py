"""One side of the benchmark of one-sided hops in a process of its own; see bench_hop_nvlink.py.

python -m tools.gpu.hop_nvlink '{"role": "attention"|"ffn", "name": N, "rows": R, "hidden": H, "limit_s": S}'
"""

from __future__ import annotations

import torch

from afd_connectors.transports.nccl.library import Nccl, load
from afd_workers.cuda_ffn import Recorder
from tools.gpu.hop_alone import AloneSide
from tools.gpu.hop_jobs import serve_jobs, timed
from tools.gpu.hop_kept import KeptSide


class NvlinkSide(KeptSide, AloneSide):
    """A side that has NCCL beside its window."""

    def __init__(self, role: str, name: str, rows: int, hidden: int, limit_s: float) -> None:
        super().__init__(role, name, rows, hidden, limit_s)
        self.library: Nccl = load()

    def ident(self) -> dict[str, object]:
        """Of a communicator to be made."""
        return {"ident": self.library.unique_id().hex(), "version": self.library.version()}

    def join(self, ident: str) -> dict[str, object]:
        """One communicator for both ways."""
        self.comm = self.library.join(bytes.fromhex(ident), int(self.first), 2)
        return {}

    def nccl(self, rows: int, hidden: int, trips: int, rounds: int) -> dict[str, object]:
        """Microseconds one way of NCCL calls in a graph."""
        count, address = rows * hidden * 2, self.rows.data_ptr()

        def trip() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(trips):
                calls = (self.library.send, self.library.recv) if self.first else (self.library.recv, self.library.send)
                for call in calls:
                    call(self.comm, 1 - int(self.first), address, count, stream)

        trip()
        torch.cuda.synchronize()
        return timed(Recorder()(trip), trips, rounds)


if __name__ == "__main__":
    serve_jobs(NvlinkSide)
