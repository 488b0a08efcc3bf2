"""`vllm bench serve` in a process that loads vLLM once and then answers one job per line of standard input.

python -m tools.gpu.bench_client '{}'   job: {"arguments": [those of vllm bench serve]} -> its result, the first error
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tools.gpu.children import answers, say


def main() -> None:
    """Says that it is ready, then answers until standard input ends."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # measures over HTTP only
    out = answers()
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    say(out, {"ready": True})
    for line in sys.stdin:
        result = serve.main(parser.parse_args(json.loads(line)["arguments"]))
        plain = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
        say(out, {**plain, "error": next((error for error in result["errors"] if error), "")})


if __name__ == "__main__":
    main()
