"""One topology tried: its servers started, their tokens compared, one of its FFN servers killed and replaced."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from afd_connectors.layout import Layout
from afd_workers.demo.client import Client
from tools import toy_checkpoint
from tools.gpu import setups
from tools.gpu.children import Failed
from tools.gpu.parity import SIZES, prompts
from tools.gpu.serve_parts import Part, Spec, specs
from tools.gpu.servers import CPU, VLLM, Server, Servers, place
from tools.streams import Crowd
from tools.topologies import faults, listening, sections
from tools.topologies.outcome import Equal, Outcome, added
from tools.topologies.started import Started, Wanted

READY_S, LIMIT_S, GONE_S = 400.0, 300.0, 20.0
SEEN = 8  # tokens of each request before a server is killed
#: Times as many tokens are asked for then, so that all requests are still running.
LONGER = {"cpu": 5, "cuda": 18}
ROWS = 64
NAME = "toy"
NCCL = "nccl-p2p"


class Trial:
    """What all topologies share: the checkpoint, the prompts, what native vLLM says to them."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self.folder, self.wanted, self.cuda = folder, wanted, wanted.device == "cuda"
        folder.mkdir(parents=True, exist_ok=True)
        toy = folder / "toy"
        self.exact = self.cuda and wanted.dtype == "float32"
        if self.exact:
            self.model = setups.spread(toy)
        else:
            self.model = setups.toy(toy, "cuda") if self.cuda else toy_checkpoint.make(wanted.family, toy)
        self.prompts = prompts(wanted.count)
        self._native: dict[int, list[list[int]]] = {}

    def arguments(self, graphs: bool) -> Sequence[str]:
        """Of every server."""
        found = ["--dtype", self.wanted.dtype, "--max-model-len", "1024", "--max-num-batched-tokens", "2048"]
        found += ["--max-num-seqs", str(ROWS), "--served-model-name", NAME, "--no-enable-prefix-caching"]
        found += ["--disable-uvicorn-access-log", "--kv-cache-memory-bytes", str(1 << 30 if self.cuda else 64 << 20)]
        if self.cuda:
            found += ["--gpu-memory-utilization", "0.1"]  # the cache's size is given
        if self.exact:
            found += ["--attention-backend", "TRITON_ATTN"]  # others take no float32
        if graphs and self.cuda:
            sizes = [size for size in SIZES if size <= ROWS]
            chosen = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
            return [*found, "--compilation-config", json.dumps(chosen)]
        return [*found, "--enforce-eager"]

    def native(self, servers: Servers, parts: Iterable[Part]) -> dict[int, Server]:
        """Starts native vLLM with as much tensor parallelism as each part, whose tokens are not known yet."""
        return {tp: self._start_native(servers, tp) for tp in {part.deployment.tp for part in parts} - {*self._native}}

    def learn(self, natives: dict[int, Server]) -> None:
        """Asks native vLLM, and ends it."""
        for tp, server in natives.items():
            server.ready(time.monotonic() + READY_S)
            self._native[tp] = self._ask(server, self._most)
            server.kill()

    def start(self, servers: Servers, part: Part) -> Started:
        """All servers of a topology, not ready yet."""
        asked, others = specs(part, self.arguments, timeout_s=5.0)
        deployment = part.deployment
        if self.cuda and (deployment.tp > 1) != (deployment.ep > 1) and os.environ.get(setups.CONNECTOR) == "auto":
            # "auto" looks at the processes of its own role, and both must find the same.
            asked, others = ([sections.changed(spec, connector=NCCL) for spec in group] for group in (asked, others))
        standby = None
        if self.wanted.standby:
            free = setups.free_port()
            standby = self._start(servers, sections.standing_by(others[-1], free), part)
            asked = [sections.with_standby(spec, free) for spec in asked]
        ffn = [self._start(servers, spec, part) for spec in others]
        return Started(part, [self._start(servers, spec, part) for spec in asked], ffn, others, standby)

    def measure(self, servers: Servers, started: Started, turn: AbstractContextManager[object]) -> Outcome:
        """Of servers that are ready; Failed, OSError or TimeoutError where it could not be tried.

        turn: held while requests run, until the lost FFN server is waited for: topologies that share devices take it.
        """
        part, count = started.part, self.wanted.tokens
        with turn:
            alone = added([self._equal(part, self._ask(front, count), count) for front in started.fronts])
            crowds = self._crowds(started.fronts, count)
            for crowd in crowds:
                crowd.wait_end(LIMIT_S)
            together = added([self._equal(part, crowd.tokens, count) for crowd in crowds])
            rate = sum(crowd.rate() for crowd in crowds)
            name = str(part) if self.cuda else str(part.deployment)
            connector = str(sections.read(started.specs[-1])["connector"])
            outcome = Outcome(name, connector, alone, together, rate)
            if not self.wanted.kill:
                return outcome
            crowds = self._crowds(started.fronts, self._most)
            for crowd in crowds:
                crowd.wait_tokens(SEEN, LIMIT_S)
            if any(stream.ended for crowd in crowds for stream in crowd.streams):
                raise Failed("requests had ended before the FFN server was killed: ask for more --tokens")
            killed = moment = time.monotonic()
            started.ffn[-1].kill()
        if started.standby is None:
            port = sections.port(started.specs[-1])
            listening.gone(port, GONE_S)
            again = self._start(servers, started.specs[-1], part, "-again")
            moment = listening.since(again, port, READY_S)
        for crowd in crowds:
            crowd.wait_end(LIMIT_S)
        for line in faults.told([crowd.streams for crowd in crowds], self._native[part.deployment.tp], killed):
            print(f"  {part}: {line}", flush=True)
        self._note(part, outcome, crowds, moment)
        return outcome

    def _note(self, part: Part, outcome: Outcome, crowds: Sequence[Crowd], moment: float) -> None:
        """What the loss of the last FFN server did. moment: when another listened, or of the kill, see Outcome."""
        deployment = part.deployment
        hit, spared = list[Crowd](), list[Crowd]()
        for number, crowd in enumerate(crowds):
            ranks = range(number * deployment.tp, (number + 1) * deployment.tp)
            peers = {
                peer for rank in ranks for peer in Layout("attention", rank, deployment.ranks, deployment.ffn).peers
            }
            (hit if deployment.ffn - 1 in peers else spared).append(crowd)
        outcome.hit, outcome.pause = self._end(part, hit)
        if all(crowd.times_after(moment) for crowd in hit):
            outcome.after = max(crowd.next_after(moment) for crowd in hit)
        if spared:
            outcome.spared, outcome.spared_pause = self._end(part, spared)

    def _end(self, part: Part, crowds: Sequence[Crowd]) -> tuple[Equal, float]:
        equal = added([self._equal(part, crowd.tokens, self._most) for crowd in crowds])
        return equal, max(crowd.longest_pause() for crowd in crowds)

    @property
    def _most(self) -> int:
        """Tokens of the longest answers."""
        return self.wanted.tokens * (LONGER[self.wanted.device] if self.wanted.kill else 1)

    def _start_native(self, servers: Servers, tp: int) -> Server:
        parallel = ("--tensor-parallel-size", str(tp)) if tp > 1 else ()
        part = Part.parse("native1")
        [spec], _ = specs(part, lambda graphs: [*self.arguments(graphs), *parallel])
        return self._start(servers, replace(spec, name=f"tp{tp}", devices=tuple(range(tp))), part)

    def _start(self, servers: Servers, spec: Spec, part: Part, suffix: str = "") -> Server:
        devices = place(spec.devices) if self.cuda else None
        name, module = f"{part.slug}-{spec.name}{suffix}", VLLM if self.cuda else CPU
        return servers.start(name, [str(self.model), *spec.arguments], devices, module)

    def _ask(self, server: Server, tokens: int) -> list[list[int]]:
        """One prompt after the other."""
        client = Client(server.url, NAME)
        return [list(client.complete(prompt, tokens).tokens) for prompt in self.prompts]

    def _crowds(self, servers: Sequence[Server], tokens: int) -> list[Crowd]:
        return [Crowd(server.url, self.prompts, tokens, NAME) for server in servers]

    def _equal(self, part: Part, found: Sequence[Sequence[int]], tokens: int) -> Equal:
        """(requests with so many tokens, all of them native's; requests)."""
        native = self._native[part.deployment.tp]
        return sum(list(one) == other[:tokens] for one, other in zip(found, native, strict=True)), len(native)
