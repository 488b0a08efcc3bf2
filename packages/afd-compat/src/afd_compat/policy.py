"""What AFD decides about a vLLM configuration, as an interface that the worker package fills."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

    from afd_compat.config import Config


class RolePolicy(Protocol):
    """Turns a parsed Config into vLLM's own settings."""

    def prepare(self, engine_args: EngineArgs, config: Config) -> EngineArgs:
        """Return the engine arguments to use: a copy, since the caller's must stay as they are."""

    def finish(self, vllm_config: VllmConfig, config: Config) -> None:
        """Check and complete the configuration that vLLM built from what `prepare` returned."""


_policy: RolePolicy | str | None = None


def use(policy: RolePolicy | str) -> None:
    """Make `policy` the one of this process; the last call wins.

    A string "module:name" names what makes it; nothing is imported before somebody asks for it.
    """
    global _policy
    _policy = policy


def current() -> RolePolicy:
    """The policy in use. Raises RuntimeError where there is none."""
    if _policy is None:
        raise RuntimeError(
            "AFD is configured but nothing decides what its roles run; install afd-workers and let vLLM load "
            "the plugin 'afd'."
        )
    if isinstance(_policy, str):
        module, _, name = _policy.partition(":")
        use(cast("RolePolicy", getattr(importlib.import_module(module), name)()))
        return current()
    return _policy
