"""What each key of the "afd" section means, for the table in README.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    "role": "`attention` or `ffn`",
    "rank": "role rank of this server's first process, where vLLM does not number the servers (each FFN server)",
    "connector": "transport by name; `auto` picks one for the device",
    "async_dp": "asynchronous data parallelism, for Ascend connectors only",
    "host": "where the FFN servers listen",
    "port": "port of FFN rank 0; FFN rank f listens on port + f",
    "num_attention_ranks": "attention ranks of the whole deployment",
    "num_ffn_ranks": "FFN ranks of the whole deployment",
    "compute_gate_on_attention": "compute router logits on attention and send them with the rows",
    "shared_experts_on_attention": "compute shared experts on attention, while the other experts are awaited",
    "dense_layers_on_attention": "compute layers without experts on attention, without an exchange",
    "connector_extra_config": "its `ffn_addresses`, `standby_addresses` (host:port lists), `gather_ms`, `wire_dtype`",
    "timeout_s": "seconds in which a live peer owes an answer",
    "recovery_timeout_s": "seconds for which an exchange is retried against a dead or restarting FFN server",
    "join_timeout_s": "seconds in which attention must have met its FFN servers",
    "dbo_rule": "with `--enable-dbo`, which steps attention splits: `measured`, sizes that start-up finds to be no "
    "slower, or `thresholds`, all that vLLM's thresholds name",
    "secret": "shared secret of both roles; better set as `AFD_SECRET`, since vLLM logs its arguments",
}
