"""The hop alone: rows of 7168 there and back between two devices, through the port and through bare NCCL.

    python -m tools.gpu.bench_hop_gpu [--sizes 1 16 128 512 2048 8192] [--hidden 7168] [--connector nccl-p2p] [--fp8]

Microseconds one way, inside graphs of 20 round trips, several replays enqueued ahead; eager: outside graphs. begin: CPU
microseconds of one announcement. Data is compared bit for bit. With `AFD_GPU_DEVICES=0,0` and `--connector nvlink` one
device is enough for that; bare NCCL, which joins no two processes on one device, is left out then.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
from collections.abc import Sequence

from tools.gpu import setups
from tools.gpu.children import DEVICES, Child, Children, Failed
from tools.options import positive

LIMIT_S = 180.0
TRIPS = 20


def numbers(answer: dict[str, object], key: str) -> list[float]:
    """A list of an answer."""
    found = answer[key]
    assert isinstance(found, list)
    return [float(value) for value in found]


def in_graphs(sizes: Sequence[int], hidden: int, connector: str) -> list[float]:
    """Microseconds one way of each size through a connector's ports, from graphs; Failed when data was wrong."""
    with Children(setups.logs(f"hop-{connector}-{hidden}")) as children:
        job = {"connector": connector, "port": setups.free_port(), "sizes": list(sizes), "hidden": hidden}
        ffn, attention = (
            children.start(f"hop-{role}", "tools.gpu.hop", {"role": role, **job, "trips": TRIPS}, place)
            for role, place in (("ffn", 1), ("attention", 0))
        )
        children.ready(LIMIT_S)
        ffn.ask({"op": "serve"}, LIMIT_S)
        told = attention.ask({"op": "measure"}, LIMIT_S)
        if not told["right"]:
            raise Failed(f"rows through {connector} came back wrong")
        return numbers(told, "graph_us")


def bare(ffn: Child, attention: Child, ident: str) -> list[float]:
    """Microseconds one way of each size through NCCL without a port."""
    errors: list[Failed] = []

    def echo() -> None:
        try:
            ffn.ask({"op": "raw", "ident": ident}, LIMIT_S)
        except Failed as error:
            errors.append(error)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    told = attention.ask({"op": "raw", "ident": ident}, LIMIT_S)
    thread.join(LIMIT_S)
    if errors:
        raise errors[0]
    return numbers(told, "us")


def measure(sizes: Sequence[int], hidden: int, connector: str, fp8: bool) -> bool:
    """Prints the table; whether all data was right."""
    with Children(setups.logs("bench-hop")) as children:
        job = {
            "connector": connector,
            "port": setups.free_port(),
            "sizes": list(sizes),
            "hidden": hidden,
            "trips": TRIPS,
            "fp8": fp8,
        }
        ffn = children.start("hop-ffn", "tools.gpu.hop", {"role": "ffn", **job}, 1)
        attention = children.start("hop-attention", "tools.gpu.hop", {"role": "attention", **job}, 0)
        first = ffn.answer(LIMIT_S)
        attention.answer(LIMIT_S)
        way = " as fp8" if fp8 else ""
        print(f"NCCL {first['version']}, port {connector}{way}, rows of {hidden} bf16, us one way", flush=True)
        shared = len({*DEVICES[:2]}) == 1
        raw = [math.nan] * len(sizes) if shared else bare(ffn, attention, str(first["ident"]))
        ffn.ask({"op": "serve"}, LIMIT_S)
        told = attention.ask({"op": "measure"}, LIMIT_S)
        columns = (raw, *(numbers(told, key) for key in ("graph_us", "eager_us", "begin_us")))
        print(" rows   raw graph  port graph  port eager  begin us", flush=True)
        for size, *row in zip(sizes, *columns, strict=True):
            print(f"{size:5} {row[0]:11.1f} {row[1]:11.1f} {row[2]:11.1f} {row[3]:9.1f}", flush=True)
        print(f"FFN steps: {ffn.ask({'op': 'figures'}, LIMIT_S)}", flush=True)
        print(f"data right: {told['right']}", flush=True)
        return bool(told["right"])


def main() -> None:
    """Exit code 0 when all data was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=positive, default=[1, 16, 128, 512, 2048, 8192])
    parser.add_argument("--hidden", type=positive, default=7168)
    parser.add_argument("--connector", default="nccl-p2p")
    parser.add_argument("--fp8", action="store_true", help="on the wire, of connector nvlink")
    options = parser.parse_args()
    try:
        right = measure(options.sizes, options.hidden, options.connector, options.fp8)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
