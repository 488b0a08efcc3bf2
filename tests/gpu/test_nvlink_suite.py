"""nvlink keeps the contract on a CUDA device; one is enough, and both roles share it."""

from __future__ import annotations

import pytest
import torch

from afd_connectors.testing import ConnectorSuite

LOADING = "CUDA_MODULE_LOADING"


@pytest.fixture(autouse=True, scope="session")
def loaded() -> None:
    """Loads all kernels of this process beforehand: CUDA loads each at its first use, for which it may wait until the
    device is idle, and where both roles are threads of one process the other one's wait keeps it busy until then.
    """
    assert not torch.cuda.is_initialized()
    with pytest.MonkeyPatch.context() as patch:  # processes of their own load what they use
        patch.setenv(LOADING, "EAGER")
        torch.cuda.init()
        torch.ones(1, device="cuda")


class TestNvlink(ConnectorSuite):
    name = "nvlink"
    device = "cuda"
