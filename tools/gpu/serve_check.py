"""`afd serve` on two devices as a user runs it: tokens beside native vLLM's, then Ctrl-C, after which nothing is left.

python -m tools.gpu.serve_check
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

from afd_workers.launch.guard import guarded
from tools.gpu import setups
from tools.gpu.children import ENV, ROOT, Children, Failed, plugin_path
from tools.gpu.parity import SIZES, ask, compare, prompts
from tools.gpu.servers import FREE_MIB, used_mib

READY_S, STOP_S, TOKENS = 240.0, 30.0, 48


def completion(url: str, prompt: list[int], count: int = TOKENS) -> list[int]:
    """Greedy token ids over the OpenAI API."""
    body = {"model": "toy", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({**body, "return_token_ids": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: list[int] = json.load(answer)["choices"][0]["token_ids"]
        return found


def ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits for /health; Failed with the end of the log."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise Failed(f"afd serve was not ready: {log.read_text(errors='replace')[-4000:]}")


def left_over(mark: str) -> list[str]:
    """Command lines of processes that have `mark` in their environment, as all have that the launcher started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def main() -> None:
    """Exit code 0 when tokens are equal and nothing is left after Ctrl-C."""
    folder = setups.logs("serve-check")
    folder.mkdir(parents=True, exist_ok=True)
    model, port, before = setups.toy(folder / "toy", "cuda"), setups.free_port(), used_mib()
    base = setups.common(model, device="cuda", rows=16, tokens=2048, length=512, cache=1 << 30)
    options = ["--max-num-seqs", "16", "--max-num-batched-tokens", "2048", "--max-model-len", "512"]
    options += ["--dtype", "bfloat16", "--no-enable-prefix-caching"]
    options += ["--kv-cache-memory-bytes", str(1 << 30), "--gpu-memory-utilization", "0.1"]
    options += ["--compilation-config", json.dumps({"cudagraph_capture_sizes": [size for size in SIZES if size <= 16]})]
    command = [sys.executable, "-m", "afd_workers.cli", "serve", str(model), "--served-model-name", "toy"]
    env = {**os.environ, **ENV, "PYTHONPATH": plugin_path(folder), "VLLM_USE_V2_MODEL_RUNNER": "1"}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    mark = f"AFD_SERVE_CHECK={uuid.uuid4().hex}"
    env |= dict([mark.split("=")])
    log, right = folder / "serve.log", False
    try:
        with Children(folder) as children:
            given = setups.graphs(base, [size for size in SIZES if size <= 16], native=True)
            native = children.start("native", setups.ENGINE, {"options": given}, 0)
            with log.open("wb") as stream:
                started = time.monotonic()
                server = subprocess.Popen(
                    guarded([*command, "--port", str(port), *options]),
                    stdout=stream, stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True,
                )  # fmt: skip
            try:
                ready(server, port, log)
                print(f"afd serve ready after {time.monotonic() - started:.0f} s", flush=True)
                children.ready(READY_S)
                some = prompts(8)
                expected = {"8 single": [ask(native, [prompt], TOKENS)[0] for prompt in some]}
                right = compare(
                    "afd serve / native",
                    expected,
                    {"8 single": [completion(f"http://127.0.0.1:{port}", p) for p in some]},
                )
                asked = time.monotonic()
                server.send_signal(signal.SIGINT)
                code = server.wait(STOP_S)
                print(f"Ctrl-C: ended with code {code} after {time.monotonic() - asked:.1f} s", flush=True)
            finally:
                server.kill()
                server.wait(10)
        time.sleep(3)
        left = left_over(mark)
        held = [after - earlier for after, earlier in zip(used_mib(), before, strict=True)]
        print(f"processes left: {left or 'none'}; MiB still held per device: {held}", flush=True)
        right = right and not left and max(held) < FREE_MIB
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    print(f"afd serve: {'as promised' if right else 'NOT as promised'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
