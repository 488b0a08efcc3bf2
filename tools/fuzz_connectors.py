"""Attacks the port of an FFN rank for a while and watches that an honest attention rank notices nothing of it.

`python tools/fuzz_connectors.py --seconds 60` prints how often each attack ran, the longest exchange and the longest
join of honest ranks and what the FFN process grew by; exits with 1 if that process said anything unforeseen, an answer
was wrong, an honest rank waited too long or lost its connection, or memory, threads or descriptors grew over a bound.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afd_connectors import AttentionPort, ConnectorError, Layout, Mode, Settings, Step, resolve
from fuzz.peers import PEERS
from fuzz.strangers import STRANGERS
from fuzz.victim import FACTS, SECRET, SHAPE, Attack, Victim

if TYPE_CHECKING:
    from torch import Tensor

GOOD, ATTACKED, JOINING = 0, (1, 2), 3
STRANGER_THREADS = 3
TIMEOUT_S = 5.0
SETTLE_S = 8.0
MAX_THREADS = 160
KINDS = ("exchanges", "joins")
JOIN_S = 20.0  # those who are served notice nothing, those who come while hundreds knock wait for their turn


def settings(port: int) -> Settings:
    return Settings(port=port, timeout_s=TIMEOUT_S, recovery_timeout_s=30, join_timeout_s=30, secret=SECRET)


def answer(hidden: Tensor, router: Tensor | None, layer: int) -> Tensor:
    """What the FFN rank computes."""
    out = hidden * 2 + layer
    return out if router is None else out + router.sum(-1, keepdim=True).to(hidden.dtype)


class Unforeseen(logging.Handler):
    """Lets only errors through: what strangers cause is a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            print(record.getMessage(), file=sys.stderr, flush=True)


def serve(connector: str, port: int) -> None:
    """The process that is attacked: serves until its standard input ends; all it says on stderr is a finding."""
    import faulthandler

    faulthandler.register(signal.SIGUSR1)
    log = logging.getLogger("afd.connectors")
    log.addHandler(Unforeseen())
    log.propagate = False
    layout = Layout("ffn", 0, FACTS.num_attention, 1)
    ffn = resolve(connector, "cpu")(layout, SHAPE, FACTS, settings(port)).open_ffn()
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("listening", flush=True)
    while not ended.is_set():
        work = ffn.recv(wait_s=0.5)
        if work is not None:
            ffn.send(work, answer(work.hidden, work.router, work.layer))
    ffn.close()


def attack(connector: str, port: int, seconds: float, seed: int) -> None:
    """The process that attacks once it is told to: several at once; prints how often each was tried."""
    cases: collections.Counter[str] = collections.Counter()
    if not sys.stdin.readline():
        return
    end = time.monotonic() + seconds

    def go_on(rank: int, attacks: tuple[Attack, ...]) -> None:
        rng = random.Random(seed + threading.get_native_id())
        while time.monotonic() < end:
            chosen = rng.choice(attacks)
            with suppress(ConnectorError, OSError):  # the FFN rank hangs up on it, as it should
                chosen(rng, Victim(connector, port, rank))
            cases[chosen.__name__] += 1

    work = [(rank, PEERS[connector]) for rank in ATTACKED] + [(ATTACKED[0], STRANGERS)] * STRANGER_THREADS
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(go_on, *each) for each in work]:
            done.result()
    print(json.dumps(cases), flush=True)


class Honest:
    """The honest ranks: what they did, how long it took at most, and what went wrong."""

    def __init__(self, connector: str, port: int, longest_s: float) -> None:
        self._limits = dict(zip(KINDS, (longest_s, JOIN_S), strict=True))
        self.counts = dict.fromkeys(KINDS, 0)
        self.longest = dict.fromkeys(KINDS, 0.0)
        self.wrong: list[str] = []
        self._connector, self._port, self._ended = connector, port, threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(run,)) for run in (self._exchange, self._join)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> bool:
        """Whether all came to their end; one that did not is a finding."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.wrong.append("an honest rank is still waiting")
                return False
        return True

    def forward(self, port: AttentionPort, seq: int, layers: int = SHAPE.layers) -> None:
        """A step with checked answers."""
        import torch

        step = Step(seq, Mode.EAGER, (random.randrange(SHAPE.tokens) + 1, random.randrange(SHAPE.tokens) + 1))
        port.begin(step)
        for layer in range(layers):
            start = time.monotonic()
            sent = []
            for stage, rows in enumerate(step.tokens):
                hidden = torch.randint(-8, 8, (rows, SHAPE.hidden)).bfloat16()
                router = torch.randint(-8, 8, (rows, SHAPE.router)).float()
                port.send(step, layer, hidden, router, stage=stage)
                sent.append((hidden, router))
            for stage, (hidden, router) in enumerate(sent):
                out = torch.empty_like(hidden)
                port.recv(step, layer, out, stage=stage)
                if not torch.equal(out, answer(hidden, router, layer)):
                    self.wrong.append(f"a wrong answer in layer {layer} stage {stage} of step {seq}")
            self._took("exchanges", time.monotonic() - start)
            time.sleep(0.002)

    def open(self, rank: int) -> AttentionPort:
        """A port of an honest rank."""
        layout = Layout("attention", rank, FACTS.num_attention, 1)
        return resolve(self._connector, "cpu")(layout, SHAPE, FACTS, settings(self._port)).open_attention()

    def _took(self, kind: str, seconds: float) -> None:
        self.counts[kind] += 1
        self.longest[kind] = max(self.longest[kind], seconds)
        if seconds > self._limits[kind]:
            self.wrong.append(f"{kind}: one took {seconds:.1f} s")

    def _watch(self, run: Callable[[], None]) -> None:
        try:
            run()
        except (ConnectorError, AssertionError) as error:
            self.wrong.append(f"an honest rank failed: {error}")

    def _exchange(self) -> None:
        port = self.open(GOOD)
        seq, since = 0, port.peers()[0].since
        while not self._ended.is_set():
            seq += 1
            self.forward(port, seq)
        if port.peers()[0].since != since:
            self.wrong.append("an honest rank lost its connection in between")
        port.close()

    def _join(self) -> None:
        while not self._ended.wait(0.5):
            start = time.monotonic()
            port = self.open(JOINING)
            self.forward(port, 1, layers=1)
            port.close()
            self._took("joins", time.monotonic() - start)


@dataclass
class Size:
    """What a process holds; the kernel's socket buffers are not in it."""

    mib: float
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Size:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tasks, files = (len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("task", "fd"))
        return cls(pages * os.sysconf("SC_PAGESIZE") / 2**20, tasks, files)


def watched(ffn: subprocess.Popen[str], attacker: subprocess.Popen[str], deadline: float) -> Size:
    """The most that the FFN process held while it was attacked."""
    most = Size.of(ffn.pid)
    while attacker.poll() is None and ffn.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        with suppress(OSError):  # it ended just now
            now = Size.of(ffn.pid)
            most = Size(max(most.mib, now.mib), max(most.threads, now.threads), max(most.files, now.files))
    return most


def start(connector: str, port: int, *options: str, stderr: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--connector", connector, "--port", str(port), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)


def fuzz(connector: str, seconds: float, seed: int, memory_mib: float, longest_s: float) -> int:
    """The whole run; 0 when nothing was found."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with tempfile.TemporaryFile("w+") as said:
        ffn = start(connector, port, "--part", "ffn", stderr=said.fileno())
        attacker = start(connector, port, "--part", "attack", "--seconds", str(seconds), "--seed", str(seed))
        assert ffn.stdout is not None
        assert attacker.stdin is not None
        found = [] if ffn.stdout.readline() == "listening\n" else ["the FFN process did not start"]
        honest = Honest(connector, port, longest_s)
        honest.start()
        time.sleep(1.5)
        before = Size.of(ffn.pid)
        with suppress(BrokenPipeError):  # it ended at once, which its code tells
            attacker.stdin.write("\n")
            attacker.stdin.flush()
        most = watched(ffn, attacker, time.monotonic() + seconds + 60)
        if attacker.poll() is None:
            attacker.kill()
            found.append("the attacks did not come to their end")
        cases = json.loads(attacker.communicate(timeout=10)[0] or "{}")
        if attacker.returncode:
            found.append(f"the attacks ended with {attacker.returncode}")
        settled = time.monotonic() + SETTLE_S
        while ffn.poll() is None and Size.of(ffn.pid).files > before.files and time.monotonic() < settled:
            time.sleep(0.1)
        after = Size.of(ffn.pid) if ffn.poll() is None else before
        if not honest.end():
            ffn.send_signal(signal.SIGUSR1)  # tells where its threads are
            time.sleep(0.5)
        ended = time.monotonic()
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            ffn.communicate(timeout=30)
        if ffn.poll() != 0:
            found.append(f"the FFN process ended with {ffn.poll()}")
            ffn.kill()
        closing_s = time.monotonic() - ended
        said.seek(0)
        found += honest.wrong[:5] + said.read().splitlines()[-40:]
    for name, held, bound in (
        ("MiB", most.mib, before.mib + memory_mib),
        ("threads", most.threads, MAX_THREADS),
        ("descriptors after the attacks", after.files, before.files + 4),
    ):
        if held > bound:
            found.append(f"{name}: expected at most {bound:.0f}, found {held:.0f}")
    for name, count in sorted(cases.items()):
        print(f"{name:20} {count:8} cases")
    print(f"{'total':20} {sum(cases.values()):8} cases in {seconds:g} s of {connector}, seed {seed}")
    for kind in KINDS:
        print(f"honest {kind:13} {honest.counts[kind]:8}, longest {honest.longest[kind] * 1000:.0f} ms")
    print(f"FFN process: {before}, at most {most}, afterwards {after}; closed in {closing_s:.1f} s")
    print("\n".join(["findings:", *found]) if found else "no findings")
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", choices=sorted(PEERS), default="tcp")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--memory-mib", type=float, default=48.0, help="most that the FFN process may grow by")
    parser.add_argument("--longest-s", type=float, default=2.0, help="most that an exchange of an honest rank may take")
    parser.add_argument("--part", choices=("ffn", "attack"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 0 < options.seconds < math.inf:
        parser.error(f"argument --seconds: expected a number above 0, found {options.seconds:g}")
    if options.part == "ffn":
        serve(options.connector, options.port)
    elif options.part == "attack":
        attack(options.connector, options.port, options.seconds, options.seed)
    else:
        return fuzz(options.connector, options.seconds, options.seed, options.memory_mib, options.longest_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
