"""The one value for everything a user can set, so that nothing else reads `additional_config["afd"]`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from afd_compat.frozen import FrozenMapping
from afd_compat.section import Section, is_word

Role = Literal["attention", "ffn"]
DboRule = Literal["measured", "thresholds"]

NAME: Final = 'additional_config["afd"]'
KEYS: Final = (
    "role", "rank", "connector", "async_dp", "host", "port", "num_attention_ranks", "num_ffn_ranks",
    "compute_gate_on_attention", "connector_extra_config", "timeout_s", "recovery_timeout_s",
    "join_timeout_s", "secret", "dbo_rule", "shared_experts_on_attention", "dense_layers_on_attention",
)  # fmt: skip
SPELLINGS: Final[Mapping[str, str]] = {  # what deployments of the earlier plugin write
    "afd_role": "role",
    "afd_connector": "connector",
    "afd_host": "host",
    "afd_port": "port",
    "async": "async_dp",
    "afd_process_group_timeout_s": "join_timeout_s",
}
CONNECTOR_SPELLINGS: Final[Mapping[str, str]] = {
    "P2pNcclAFDConnector": "nccl-p2p",
    "CAMP2pAFDConnector": "camp2p",
    "CAMAsyncAFDConnector": "cam-async",
}
DEVICES: Final = ("cpu", "cuda", "npu")
DEVICE_OF: Final[Mapping[str, str]] = {
    "nccl-p2p": "cuda",
    "nvlink": "cuda",
    "camp2p": "npu",
    "cam-async": "npu",
}
SYNCHRONOUS: Final = frozenset({"loopback", "shm", "tcp", "nccl-p2p", "nvlink", "camp2p"})
MAX_RANKS: Final = 65536
STEP_LIMIT: Final = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
STEP_LIMIT_DEFAULT_S: Final = 300.0
SECRET: Final = "AFD_SECRET"


@dataclass(frozen=True, slots=True)
class Config:
    """One server's part in AFD. All times are in seconds.

    rank: role rank of this server's first process, for servers that vLLM does not number itself (each FFN
    rank, and attention servers without data parallelism).
    dbo_rule: which steps dual-batch overlap splits on the attention role: those that vLLM's thresholds name, or of
    these only the sizes that start-up measures to be no slower.
    """

    role: Role
    rank: int = 0
    connector: str = "auto"
    async_dp: bool = False
    host: str = "127.0.0.1"
    port: int = 1239
    num_attention_ranks: int = 1
    num_ffn_ranks: int = 1
    compute_gate_on_attention: bool = False
    connector_extra_config: Mapping[str, object] = field(default_factory=FrozenMapping)
    timeout_s: float = 10.0
    recovery_timeout_s: float = 240.0
    join_timeout_s: float = 120.0
    secret: str | None = field(default=None, repr=False)
    dbo_rule: DboRule = "measured"
    shared_experts_on_attention: bool = False
    dense_layers_on_attention: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, object], env: Mapping[str, str]) -> Config:
        """Parse the object under "afd"; `env` gives the secret and vLLM's step limit where it sets them.

        Raises ValueError with one sentence: what was expected, what was found, what to do.
        """
        section = Section(raw, name=NAME, keys=KEYS, spellings=SPELLINGS, hidden=("secret",))
        connector = section.text("connector", "auto")
        config = cls(
            role=cast("Role", section.choice("role", ("attention", "ffn"))),
            rank=section.whole("rank", 0, 0, MAX_RANKS - 1),
            connector=CONNECTOR_SPELLINGS.get(connector, connector),
            async_dp=section.flag("async_dp", False),
            host=section.host("host", "127.0.0.1"),
            port=section.whole("port", 1239, 1, 65535),
            num_attention_ranks=section.whole("num_attention_ranks", 1, 1, MAX_RANKS),
            num_ffn_ranks=section.whole("num_ffn_ranks", 1, 1, MAX_RANKS),
            compute_gate_on_attention=section.flag("compute_gate_on_attention", False),
            connector_extra_config=section.mapping("connector_extra_config"),
            timeout_s=section.seconds("timeout_s", 10.0),
            recovery_timeout_s=section.seconds("recovery_timeout_s", 240.0),
            join_timeout_s=section.seconds("join_timeout_s", 120.0),
            secret=_secret(section, env),
            dbo_rule=cast("DboRule", section.choice("dbo_rule", ("measured", "thresholds"), "measured")),
            shared_experts_on_attention=section.flag("shared_experts_on_attention", False),
            dense_layers_on_attention=section.flag("dense_layers_on_attention", False),
        )
        config._check_async()
        config._check_step_limit(env)
        return config

    @classmethod
    def from_additional_config(cls, additional_config: object) -> Config | None:
        """Parse vLLM's `additional_config` (a dict, an object or None) with this process's environment.

        Returns None when it has no "afd". Raises ValueError as `parse` does.
        """
        if not is_configured(additional_config):
            return None
        if isinstance(additional_config, str):
            raise ValueError("additional_config must be a JSON object, but it is a str; pass the object itself.")
        if isinstance(additional_config, Mapping):
            return cls.parse(additional_config["afd"], os.environ)
        section: Mapping[str, object] = getattr(additional_config, "afd", {})
        return cls.parse(section, os.environ)

    def check_device(self, device: str) -> None:
        """Raise ValueError unless `device` ("cpu", "cuda" or "npu") can run this connector and `async_dp`."""
        if device not in DEVICES:
            raise ValueError(f"The device must be one of {', '.join(DEVICES)}, but it is {device!r}; use one of those.")
        needed = DEVICE_OF.get(self.connector, device)
        if device != needed:
            raise ValueError(
                f"{NAME}.connector {self.connector!r} needs device {needed}, but this vLLM runs on {device}; "
                f'leave the connector out, or write "auto", to get one for {device}.'
            )
        if self.async_dp and device != "npu":
            raise ValueError(f"{NAME}.async_dp needs device npu, but vLLM runs on {device}; set async_dp to false.")

    def _check_async(self) -> None:
        if self.async_dp and self.connector in SYNCHRONOUS:
            raise ValueError(
                f"{NAME}.async_dp needs an asynchronous connector, but the connector is {self.connector!r}; "
                'use "cam-async" or set async_dp to false.'
            )

    def _check_step_limit(self, env: Mapping[str, str]) -> None:
        limit = _step_limit(env)
        for key, value in (("recovery_timeout_s", self.recovery_timeout_s), ("timeout_s", self.timeout_s)):
            # Beyond the limit vLLM gives up on the step and ends the engine with every request in it.
            if value >= limit:
                raise ValueError(
                    f"{NAME}.{key} must be below {STEP_LIMIT}, but they are {value:g} and {limit:g}; "
                    "lower the first or raise the second."
                )


def is_configured(additional_config: object) -> bool:
    """Whether vLLM's `additional_config` has anything under "afd", however wrong it may be."""
    if isinstance(additional_config, Mapping):
        return "afd" in additional_config
    if isinstance(additional_config, str):
        return '"afd"' in additional_config
    return getattr(additional_config, "afd", None) is not None


def is_async(additional_config: object, role: Role | None = None) -> bool:
    """Whether the "afd" section asks for `async_dp`, on `role` if that is given; nothing else of it is checked.

    Cheap enough for every forward pass, where the section has been parsed long before.
    """
    section = additional_config.get("afd") if isinstance(additional_config, Mapping) else None
    if not isinstance(section, Mapping) or section.get("async_dp", section.get("async")) is not True:
        return False
    return role is None or section.get("role", section.get("afd_role")) == role


def _secret(section: Section, env: Mapping[str, str]) -> str | None:
    """The section's secret or else the environment's, held to the same rule: a stray newline would never match."""
    if section.has("secret"):
        return section.text("secret", "")
    given = env.get(SECRET, "")
    if given and not is_word(given):
        raise ValueError(
            f"{SECRET} must be a string without spaces or line ends, and UTF-8, but it is not; set it anew."
        )
    return given or None


def _step_limit(env: Mapping[str, str]) -> float:
    given = env.get(STEP_LIMIT, "")
    try:
        limit = float(given) if given else STEP_LIMIT_DEFAULT_S
    except ValueError:
        limit = math.nan
    if not limit > 0:
        raise ValueError(f"{STEP_LIMIT} must be a number of seconds above 0, but it is {given!r}; correct or unset it.")
    return limit
