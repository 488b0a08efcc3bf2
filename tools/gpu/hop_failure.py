"""What a side sees of a peer that stands still, stops, dies or is started anew, under the same graph."""

from __future__ import annotations

import signal
import time

from tools.gpu.hop_pair import LIMIT_S, WAIT_S, Answer, Pair


def failure(pair: Pair, hidden: int) -> bool:
    """A peer that stands still, that is stopped in the middle of a step, that dies, that is started anew."""
    job = {"rows": 128, "hidden": hidden, "trips": 20}
    pair.both({"op": "keep", **job})
    print("replay:", pair.both({"op": "again"}))
    pair.attention.begin({"op": "again"})
    time.sleep(0.2)
    pair.ffn.process.send_signal(signal.SIGSTOP)
    pair.ffn.begin({"op": "again"})
    time.sleep(1.0)
    pair.ffn.process.send_signal(signal.SIGCONT)
    print("peer stopped for 1 s:", pair.attention.answer(LIMIT_S), pair.ffn.answer(LIMIT_S), flush=True)
    print("peer gone, host ends the wait:", pair.attention.ask({"op": "end"}, LIMIT_S), flush=True)
    pair.ffn.kill()
    pair.replace_ffn()
    print("new process, met again:", pair.both({"op": "meet"})[0])
    pair.ffn.ask({"op": "keep", **job}, LIMIT_S)
    first = pair.both({"op": "again"})[0]
    print("the same attention graph:", first, flush=True)
    silent = mid_step(pair)
    pair.both({"op": "meet"})
    met = pair.both({"op": "again"})[0]
    print("met again:", met, flush=True)
    last = killed_under_load(pair)
    pair.replace_ffn()
    pair.both({"op": "meet"})
    pair.ffn.ask({"op": "keep", **job}, LIMIT_S)
    second = pair.both({"op": "again"})[0]
    print("new process, the same attention graph:", second, flush=True)
    return bool(
        first["right"] and silent and met["right"] and second["right"] and last["sound"] and last["error"] != [0, 0, 0]
    )


def mid_step(pair: Pair) -> bool:
    """The FFN side waits in its graph and is stopped by its host: attention has to get an error, never an answer."""
    ended = pair.ffn.ask({"op": "end"}, LIMIT_S)
    last = pair.attention.ask({"op": "again"}, LIMIT_S)
    print("FFN stopped in the middle of a step:", ended, last, flush=True)
    return ended["error"] != [0, 0, 0] and last["error"] != [0, 0, 0] and not last["touched"]


def killed_under_load(pair: Pair) -> Answer:
    """What attention saw of an FFN process that ended."""
    pair.ffn.begin({"op": "again", "times": 100000})
    pair.attention.begin({"op": "again", "times": 100000})
    time.sleep(1.0)
    killed = time.perf_counter()
    pair.ffn.kill()
    print(f"killed after 1 s of load, limit {WAIT_S:g} s:", end=" ", flush=True)
    last = pair.attention.answer(LIMIT_S)
    print(f"stream went on {time.perf_counter() - killed:.2f} s after the kill:", last, flush=True)
    return last
