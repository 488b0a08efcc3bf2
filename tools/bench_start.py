"""Milliseconds that the plugin adds to the start of each vLLM process that does not use AFD, and what it imports.

    python tools/bench_start.py [--runs N]

Each run is a fresh interpreter that has loaded what every vLLM process loads of the standard library and of packaging.
The time is processor time of `register()`, all its imports included, with compiled files in place.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.options import positive

LIMIT_MS = 50.0
RUN = """
import argparse, ast, asyncio, contextlib, dataclasses, functools, hashlib, importlib.metadata, importlib.util, inspect
import json, logging, pathlib, pkgutil, re, sys, threading, time, tokenize, typing, zipfile
import packaging.specifiers, packaging.version
start = time.process_time()
from afd_workers.plugin import register
register()
took = (time.process_time() - start) * 1e3
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "numpy", "transformers"})
print(json.dumps([took, heavy]))
"""


def run() -> tuple[float, list[str]]:
    """(milliseconds, heavy packages that were imported) of one fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=120, check=True)
    took, heavy = json.loads(done.stdout)
    return float(took), [str(name) for name in heavy]


def main() -> int:
    """Prints one line; 1 where the limit is not held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=positive, default=15)
    runs = [run() for _ in range(parser.parse_args().runs + 1)][1:]  # the first one may compile
    times = sorted(took for took, _ in runs)
    heavy = sorted({name for _, names in runs for name in names})
    print(
        f"the plugin adds {statistics.median(times):.1f} ms (least {times[0]:.1f}, most {times[-1]:.1f}, "
        f"{len(times)} runs; limit {LIMIT_MS:g}) and imports {', '.join(heavy) or 'neither vllm nor torch'}"
    )
    return 1 if heavy or statistics.median(times) > LIMIT_MS else 0


if __name__ == "__main__":
    sys.exit(main())
