#!/usr/bin/env python3
"""Sets up this repository and runs its demo, tests, linters and type checks with the standard library alone.

It makes .venv with hatch in it, keeps hatch's environments in .hatch, and leaves nothing outside this folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
HATCH = "hatch>=1.16,<1.19"
OLDEST, TOO_NEW = (3, 11), (3, 15)
CPU = "cpu.0.30.0"
NEWEST = "cpu.0.32.0"
TORCH = "torch"
SUITES = {"bare": ("tests/bare",), TORCH: ("tests/torch",), CPU: ("tests/vllm", "tests/e2e")}
ENVIRONMENTS = ("lint", *SUITES, NEWEST)
INSTALLED = ("name", "version", "dependencies", "scripts", "entry-points")
SCRIPTS = {"lint": ("lint", "lint"), "types": (TORCH, "types"), "smoke": (NEWEST, "smoke"), "demo": (CPU, "demo")}
NO_TESTS = 5  # pytest's exit status when a selection matches nothing

COMMANDS = {
    "demo": "run a small model native and split, and compare the tokens",
    "test": "run every suite that needs no accelerator; further arguments go to pytest",
    "lint": "ruff and the import rules",
    "types": "mypy",
    "smoke": "the same in short on the newest vLLM that has a CPU build",
    "all": "lint, types, test, smoke",
    "setup": "only make the environments that tests need, or those that are named",
}
TAKES = {CPU: "4 to 9 minutes, 4 GB", NEWEST: "4 to 9 minutes, 4 GB"}


class Failed(Exception):
    """A stage failed: one sentence, and the exit status to end with."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def say(text: str) -> None:
    print(f"[dev] {text}", flush=True)


@contextmanager
def stage(name: str, took: dict[str, float]) -> Iterator[None]:
    """Announces a stage and records how many seconds it took, also when it fails."""
    say(name)
    start = time.monotonic()
    try:
        yield
    finally:
        took[name] = time.monotonic() - start


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Keeps a second run in this checkout from building the same environment at the same time."""
    folder = ROOT / ".hatch"
    folder.mkdir(exist_ok=True)
    with (folder / f"lock-{what}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run is installing {what} in this checkout; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def ahead(environment: str) -> Iterator[None]:
    """Meanwhile makes an environment that is needed later; what does not succeed is tried again when it is needed."""
    command = [sys.executable, str(Path(__file__).resolve()), "setup", environment]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    try:
        yield
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
        child.wait()


def settings() -> dict[str, str]:
    """The environment variables that keep hatch inside this checkout and on this Python."""
    folder = ROOT / ".hatch"
    foreign = {"VIRTUAL_ENV", "PYTHONHOME", "HATCH_ENV"}
    return {
        **{key: value for key, value in os.environ.items() if key not in foreign},
        "HATCH_DATA_DIR": str(folder),
        "HATCH_CACHE_DIR": str(folder / "cache"),
        "HATCH_CONFIG": str(folder / "config.toml"),
        "HATCH_PYTHON": "self",
        "HATCH_INTERACTIVE": "0",
    }


def run(command: list[str]) -> int:
    """Runs a command in the checkout with its output shown as it comes; returns its exit status."""
    process = subprocess.Popen(command, cwd=ROOT, env=settings())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the child got the same Ctrl-C and may need seconds to stop its servers


def install(command: list[str], what: str) -> None:
    """Runs an installing command; a failure becomes one sentence below pip's own words."""
    if run(command):
        raise Failed(
            f"Installing {what} failed, and pip's lines above say why: repeat it once pip reaches its index "
            "or, where it did not find torch, with PyTorch's CPU index added as vLLM's documentation says."
        )


def hatch() -> str:
    return str(ROOT / ".venv" / "bin" / "hatch")


def bootstrap() -> None:
    """Makes .venv with hatch in it, unless a complete one is there."""
    config = ROOT / ".hatch" / "config.toml"
    if not config.is_file():
        config.write_text('mode = "local"\n')
    venv, mark = ROOT / ".venv", ROOT / ".venv" / "afd-ready"
    wanted = f"{HATCH} on {sys.version.split()[0]}"
    if mark.is_file() and mark.read_text() == wanted:
        return
    shutil.rmtree(venv, ignore_errors=True)
    if run([sys.executable, "-m", "venv", str(venv)]):
        raise Failed("Python could not make a virtual environment; install its venv module (python3-venv on Debian).")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    install([*pip, "install", HATCH], "hatch into .venv")
    mark.write_text(wanted)


def fingerprint(environment: str) -> str:
    """What an environment is made from: its table without scripts, the packages' metadata, the pins, Python."""
    import tomllib

    tables = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    made_from: list[object] = [sys.version, hatch()]
    for name in ("default", environment.split(".")[0]):
        made_from.append({key: value for key, value in tables[name].items() if key != "scripts"})
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]:
        project = tomllib.loads(path.read_text())["project"]
        made_from.append({key: project.get(key) for key in INSTALLED})
    if environment.startswith("cpu."):
        made_from.append((ROOT / "tools" / "pins" / f"vllm-{environment[4:]}.txt").read_text())
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def prepare(environment: str, took: dict[str, float]) -> None:
    """Makes a hatch environment anew when it is missing, half made, or made from something else."""
    with alone(".venv"):
        if not (ROOT / ".venv" / "afd-ready").is_file():
            with stage("set up .venv with hatch (half a minute)", took):
                bootstrap()
        else:
            bootstrap()
    with alone(environment):
        mark = ROOT / ".hatch" / f"ready-{environment}"
        wanted = fingerprint(environment)
        if mark.is_file() and mark.read_text() == wanted:
            return
        mark.unlink(missing_ok=True)
        with stage(f"set up environment {environment} ({TAKES.get(environment, 'about a minute')})", took):
            run([hatch(), "-q", "env", "remove", environment])
            install([hatch(), "env", "create", environment], f"environment {environment}")
        mark.write_text(wanted)


def script(environment: str, name: str, arguments: list[str], took: dict[str, float]) -> int:
    """Runs one script of hatch.toml in its environment; returns the exit status."""
    prepare(environment, took)
    with stage(" ".join([f"{environment}:{name}", *arguments]), took):
        return run([hatch(), "run", f"{environment}:{name}", *arguments])


def check(environment: str, name: str, arguments: list[str], took: dict[str, float]) -> None:
    status = script(environment, name, arguments, took)
    if status:
        raise Failed(f"{environment}:{name} failed with exit status {status}; its output is above.", status)


def home(path: str) -> str:
    """The environment of the suite that a path lies in; what lies in none needs all that there is."""
    return next((name for name, folders in SUITES.items() if path.startswith(folders)), CPU)


def test(arguments: list[str], took: dict[str, float]) -> None:
    """Runs the suites, or those that the given paths belong to; all of them, also after one failed."""
    paths = [word for word in arguments if (ROOT / word.split("::")[0]).exists()]
    options = [word for word in arguments if word not in paths]
    statuses = []
    for environment, folders in SUITES.items():
        mine = [path for path in paths if home(path) == environment]
        if paths and not mine:
            continue
        statuses.append(script(environment, "test", [*(mine or folders), *options], took))
    if arguments and any(status != NO_TESTS for status in statuses):
        statuses = [status for status in statuses if status != NO_TESTS]
    failed = [status for status in statuses if status]
    if failed:
        raise Failed("Tests failed; pytest's last lines above name them.", failed[0])


def carry_out(command: str, arguments: list[str], took: dict[str, float]) -> None:
    if command == "all":
        with ahead(CPU):
            check("lint", "lint", [], took)
            check(TORCH, "types", [], took)
            prepare(CPU, took)
        with ahead(NEWEST):  # ready long before the suites are over
            test([], took)
        check(NEWEST, "smoke", [], took)
    elif command == "setup":
        for environment in arguments or SUITES:
            if environment not in ENVIRONMENTS:
                raise Failed(
                    f"Expected environments among {', '.join(ENVIRONMENTS)}, found {environment}: name one of these.", 2
                )
            prepare(environment, took)
    elif command == "test":
        test(arguments, took)
    else:
        check(*SCRIPTS[command], arguments, took)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 tools/dev.py",
        description="\n".join(f"{name:6} {text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    command, arguments = parser.parse_known_args()
    took: dict[str, float] = {}
    try:
        if not OLDEST <= sys.version_info[:2] < TOO_NEW:
            raise Failed(
                f"Expected Python 3.11 to 3.14, found {sys.version.split()[0]} ({sys.executable}): "
                f"run this with one of those, for example python3.11 tools/dev.py {command.command}."
            )
        if command.command == "all" and arguments:
            raise Failed(f"Expected no argument after all, found {' '.join(arguments)}: give it to one command.", 2)
        carry_out(command.command, arguments, took)
    except Failed as failure:
        print(f"[dev] {failure}", file=sys.stderr, flush=True)
        return failure.status
    finally:
        for name, seconds in took.items():
            say(f"{seconds:6.1f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
