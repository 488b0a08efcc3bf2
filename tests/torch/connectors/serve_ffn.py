"""An FFN rank in a process of its own, for tests that kill and stop it: serve_ffn.py PORT TIMEOUT_S."""

from __future__ import annotations

import sys

from afd_connectors import Facts, Layout, Settings, Shape, resolve

SHAPE = Shape(16, 8, "bfloat16", 200, stages=2)
FACTS = Facts("0.1.0", "none", "processes", "bfloat16", 8, 200, 0, "ffn", 2, (), 1, 1)


def main() -> None:
    """Serves until killed; says when it listens."""
    settings = Settings(port=int(sys.argv[1]), timeout_s=float(sys.argv[2]))
    port = resolve("tcp", "cpu")(Layout("ffn", 0, 1, 1), SHAPE, FACTS, settings).open_ffn()
    print("listening", flush=True)
    while True:
        work = port.recv(wait_s=1.0)
        if work is not None:
            port.send(work, work.hidden * 2 + work.layer % 64)


if __name__ == "__main__":
    main()
