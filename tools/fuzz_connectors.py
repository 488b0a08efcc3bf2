"""Attacks the port of an FFN rank for a while and watches that an honest attention rank notices nothing of it.

`python tools/fuzz_connectors.py --seconds 60` prints how often each attack ran, the longest exchange and the longest
join of honest ranks and what the FFN process grew by; exits with 1 if that process said anything unforeseen, an answer
was wrong, an honest rank waited too long or lost its connection, or memory, threads or descriptors grew over a bound.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from afd_workers.launch.guard import guarded
from fuzz.attacker import attack
from fuzz.honest import KINDS, Honest
from fuzz.peers import PEERS
from fuzz.size import Size, grown, watched
from fuzz.target import serve

SETTLE_S = 8.0
OVERTIME_S = 60.0


def start(connector: str, port: int, *options: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """One of the two processes."""
    command = guarded([sys.executable, __file__, "--connector", connector, "--port", str(port), *options])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)


def attacked(ffn: subprocess.Popen[str], attacker: subprocess.Popen[str], seconds: float, found: list[str]) -> Size:
    """Lets the attacks begin and waits for their end; the most that the FFN process held meanwhile."""
    assert attacker.stdin is not None
    with suppress(BrokenPipeError):  # it ended at once, which its code tells
        attacker.stdin.write("\n")
        attacker.stdin.flush()
    most = watched(ffn, attacker, time.monotonic() + seconds + OVERTIME_S)
    if attacker.poll() is None:
        attacker.kill()
        found.append("the attacks did not come to their end")
    return most


def settled(ffn: subprocess.Popen[str], before: Size) -> Size:
    """What the FFN process holds once it has let go of what the attacks left, if it does."""
    until = time.monotonic() + SETTLE_S
    while ffn.poll() is None and Size.of(ffn.pid).files > before.files and time.monotonic() < until:
        time.sleep(0.1)
    return Size.of(ffn.pid) if ffn.poll() is None else before


def closed(ffn: subprocess.Popen[str], found: list[str]) -> float:
    """Seconds that the FFN process takes to end."""
    began = time.monotonic()
    with suppress(subprocess.TimeoutExpired, BrokenPipeError):
        ffn.communicate(timeout=30)
    if ffn.poll() != 0:
        found.append(f"the FFN process ended with {ffn.poll()}")
        ffn.kill()
    return time.monotonic() - began


def fuzz(connector: str, seconds: float, seed: int, memory_mib: float, longest_s: float) -> int:
    """The whole run; 0 when nothing was found."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with tempfile.TemporaryFile("w+") as said:
        ffn = start(connector, port, "--part", "ffn", stderr=said.fileno())
        attacker = start(connector, port, "--part", "attack", "--seconds", str(seconds), "--seed", str(seed))
        assert ffn.stdout is not None
        found = [] if ffn.stdout.readline() == "listening\n" else ["the FFN process did not start"]
        honest = Honest(connector, port, longest_s)
        honest.start()
        time.sleep(1.5)
        before = Size.of(ffn.pid)
        most = attacked(ffn, attacker, seconds, found)
        cases: dict[str, int] = json.loads(attacker.communicate(timeout=10)[0] or "{}")
        if attacker.returncode:
            found.append(f"the attacks ended with {attacker.returncode}")
        after = settled(ffn, before)
        if not honest.end():
            ffn.send_signal(signal.SIGUSR1)  # tells where its threads are
            time.sleep(0.5)
        closing_s = closed(ffn, found)
        said.seek(0)
        found += honest.wrong[:5] + said.read().splitlines()[-40:]
    found += grown(before, most, after, memory_mib)
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
