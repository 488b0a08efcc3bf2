"""What Ascend roles will change in vLLM-Ascend and vLLM; none of it has a body yet, and the tables say so."""

from __future__ import annotations

from typing import Final

from afd_compat.declaration import planned

_UNTIL: Final = "not part of this version: its body comes with the Ascend workers"

ascend_config = planned(
    "vllm_ascend.ascend_config:init_ascend_config",
    processes=("api", "engine", "worker"),
    effect="NPU: keeps the afd section out of Ascend's own strict configuration.",
    until=_UNTIL,
)

ascend_platform = planned(
    "vllm_ascend.platform:NPUPlatform.check_and_update_config",
    processes=("api", "engine"),
    effect="NPU: what Ascend's platform makes of the configuration stays right for two stages per step.",
    until=_UNTIL,
)

mla_graph = planned(
    "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
    processes=("worker",),
    effect="NPU: ACL graph parameters of MLA layers go through the forward context of their stage.",
    until=_UNTIL,
)

mrv2_ubatching = planned(
    "vllm.v1.worker.gpu.ubatch_utils:UBatchRunner",
    processes=("worker",),
    effect="NPU: vLLM's own runner of two stages finds Ascend's streams and graphs, inside one call.",
    until=_UNTIL,
)
