"""The process that attacks: several attacks at once, of strangers and of ranks that have agreed."""

from __future__ import annotations

import collections
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from afd_connectors import ConnectorError
from fuzz.peers import PEERS
from fuzz.strangers import STRANGERS
from fuzz.victim import Attack, Victim

ATTACKED = (1, 2)
STRANGER_THREADS = 3


def attack(connector: str, port: int, seconds: float, seed: int) -> None:
    """Attacks once a line on standard input says so; prints how often each attack was tried."""
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
