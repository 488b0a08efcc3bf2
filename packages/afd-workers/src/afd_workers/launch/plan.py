"""What to start: one command, environment and health address per server, derived from a topology."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from afd_compat.config import SECRET
from afd_workers.launch import cores, devices
from afd_workers.launch.free import free_ports
from afd_workers.launch.options import read
from afd_workers.launch.topology import Topology
from afd_workers.platform import NCCL

#: Works with every vLLM distribution, also the CPU wheel, whose ``vllm serve`` misses its own package metadata.
API_SERVER = "vllm.entrypoints.launchers.api_server.entry"
LOOPBACK = "127.0.0.1"
#: Attention's /health says whether it serves or waits for an FFN rank.
HEALTH = ("--middleware", "afd_workers.health.Health")
#: Two servers share a host's memory here, so that neither may take vLLM's default share of all of it.
CPU_KV_CACHE_BYTES = 1 << 30
_BY_NCCL = ("nccl-p2p", "P2pNcclAFDConnector")


@dataclass(frozen=True, slots=True)
class Server:
    """One server to start. name: how its log lines and errors are headed. health: URL that answers 200 when ready."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    health: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for. section: the user's part of "afd".

    options: vLLM's own, given to every server; a tensor parallel size among them is that of both roles.
    devices: role -> devices that its processes get, for roles whose devices the user chose; see devices.deal.
    secret: handed on in the environment, since vLLM logs its arguments and every user of a host can list them.
    """

    model: str
    topology: Topology
    host: str
    port: int
    options: tuple[str, ...] = ()
    section: Mapping[str, object] = field(default_factory=dict)
    additional: Mapping[str, object] = field(default_factory=dict)
    secret: str | None = field(default=None, repr=False)
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)


def split(request: Request, env: Mapping[str, str], *, cpu: bool) -> tuple[Server, ...]:
    """Servers for both roles: one for all attention ranks (data parallel), one for each FFN rank."""
    topology, tensor = request.topology, read(request.options).tensor_parallel_size
    env = env if request.secret is None else {**env, SECRET: request.secret}
    env = env if cpu else {**NCCL, **env}
    attention_ranks = topology.attention * tensor
    places = () if cpu else devices.deal(attention_ranks, [tensor] * topology.ffn, env, request.devices)
    if places and request.section.get("connector") in _BY_NCCL:
        devices.check_apart(places, tensor)
    shares = cores.blocks(topology.processes(tensor))
    section = {
        "host": LOOPBACK,
        "port": free_ports(topology.ffn)[0],
        **request.section,
        "num_attention_ranks": attention_ranks,
        "num_ffn_ranks": topology.ffn,
    }
    parallel = () if topology.attention == 1 else ("--data-parallel-size", str(topology.attention))
    attention = _server(
        "attention",
        request,
        (*HEALTH, *_memory(request, env, cpu), *parallel),
        {**section, "role": "attention"},
        _bound(env, shares[:attention_ranks], places[:1]),
    )
    ffn_ports = free_ports(topology.ffn)
    ffn = (
        _server(
            f"ffn {rank}",
            Request(request.model, topology, LOOPBACK, ffn_ports[rank], request.options, additional=request.additional),
            (),
            {**section, "role": "ffn", "rank": rank},
            _bound(env, shares[attention_ranks + rank * tensor :][:tensor], places[1 + rank :][:1]),
        )
        for rank in range(topology.ffn)
    )
    return (attention, *ffn)


def native(request: Request, env: Mapping[str, str], *, cpu: bool, ranks: int = 1) -> Server:
    """The same model on one plain vLLM server, with the processors that its processes would get among ``ranks``."""
    tensor = read(request.options).tensor_parallel_size
    bound = _bound(env, cores.blocks(max(ranks, tensor))[:tensor], ()) if cpu else env
    return _server("native", request, _memory(request, env, cpu), None, bound)


def _server(
    name: str, request: Request, extra: Sequence[str], section: Mapping[str, object] | None, env: Mapping[str, str]
) -> Server:
    command = [sys.executable, "-m", API_SERVER, "--model", request.model, "--host", request.host]
    command += ["--port", str(request.port), *request.options, *extra]
    additional = dict(request.additional) if section is None else {**request.additional, "afd": dict(section)}
    if additional:
        command += ["--additional-config", json.dumps(additional)]
    scheme = "https" if any(option.startswith("--ssl-certfile") for option in request.options) else "http"
    host = LOOPBACK if request.host in ("0.0.0.0", "") else request.host
    return Server(name, tuple(command), env, f"{scheme}://{host}:{request.port}/health")


def _memory(request: Request, env: Mapping[str, str], cpu: bool) -> tuple[str, ...]:
    """A KV-cache size for CPU servers, unless the user chose one."""
    chosen = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
    given = any(option.split("=")[0].replace("_", "-") in chosen for option in request.options)
    if not cpu or given or env.get("VLLM_CPU_KVCACHE_SPACE"):
        return ()
    return ("--kv-cache-memory-bytes", str(CPU_KV_CACHE_BYTES))


def _bound(env: Mapping[str, str], shares: Sequence[Sequence[int]], places: Sequence[str]) -> Mapping[str, str]:
    """``env`` with the device of one server, or without one its processors, unless the user bound them."""
    if places:
        return {**env, devices.VISIBLE: places[0]}
    if "VLLM_CPU_OMP_THREADS_BIND" in env:
        return dict(env)
    return {**env, **cores.environment(shares)}
