"""The ``vllm.general_plugins`` entry point: declares the patches to vLLM and says how a role is chosen."""

from __future__ import annotations


def register() -> None:
    """Called by vLLM in each of its processes, possibly twice.

    Without an "afd" section nothing of ours runs later, but the balanced routing where vLLM's variable names it; where
    the command line has a section that vLLM drops, a warning says so.
    """
    import sys

    from afd_compat import install, policy, registry
    from afd_workers import dropped, routing

    policy.use("afd_workers.policy:Roles")
    install.install(registry.declared())
    routing.offer_if_asked()
    dropped.warn(sys.argv)
