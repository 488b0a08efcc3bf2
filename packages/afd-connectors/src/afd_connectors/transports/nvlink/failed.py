"""A call of CUDA that failed, with its code, since some codes say that it will fail for ever."""

from __future__ import annotations

from afd_connectors.errors import ConnectorError

#: Devices, or what lies between two of them, that do not map each other's memory, now or later.
FOR_GOOD = frozenset({"CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_DEVICE", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"})


class CallFailed(ConnectorError):
    """code: as CUDA names it."""

    def __init__(self, call: str, code: str) -> None:
        super().__init__(f"{call} failed: {code}.")
        self.code = code

    @property
    def for_good(self) -> bool:
        """Whether the same call will fail again whatever happens meanwhile."""
        return self.code in FOR_GOOD
