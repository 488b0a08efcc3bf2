"""A process that has imported vLLM once and forks servers and engines, since each import takes ten seconds or more.

python -m tests.support.warm: a job per line of standard input, and on standard output a line with its process id and
later one with its exit status. Jobs end with this process, which ends with its standard input. tests.support.forks is
the other side.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing.context
import os
import runpy
import select
import sys
from dataclasses import dataclass
from typing import TextIO

from afd_workers.launch.guard import adopt_orphans, follow
from tests.support import netns

#: What a server or an engine imports before it has read its model, as far as it does without options.
IMPORTED = (
    "vllm",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.registry",
    "uvloop",
)
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """What a fork becomes: ``python -m module *arguments`` in a session of its own, both outputs going to ``log``.

    namespace: the network namespace that it is in, this process's own without one.
    """

    module: str
    arguments: list[str]
    env: dict[str, str]
    log: str
    namespace: str | None = None


def main() -> None:
    """Serves until its input ends; in a fork, runs that one's job and returns."""
    adopt_orphans()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints while it is imported is no reply
    for name in IMPORTED:
        importlib.import_module(name)
    # vLLM spawns its own processes on CPU, as OpenMP's threads do not survive a fork. With one thread there are none.
    methods = multiprocessing.context._concrete_contexts
    methods["spawn"] = methods["fork"]
    job = _serve(replies)
    if job is not None:
        _become(job)


def _serve(replies: TextIO) -> Job | None:
    """The job, in a fork; None at the end of the input."""
    ours = os.getpid()
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            line = _line()
            if not line:
                return None
            pid = os.fork()
            if pid == 0:
                replies.close()
                return Job(**json.loads(line)) if follow(ours) else None
            replies.write(json.dumps({"started": pid}) + "\n")
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = found
                replies.write(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}) + "\n")


def _line() -> bytes:
    """One line of standard input, without reading ahead: a fork must not hold the next job."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _become(job: Job) -> None:
    os.setsid()
    if job.namespace is not None:
        netns.enter(job.namespace)
    os.environ.clear()
    os.environ.update(job.env)
    log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.argv = [job.module, *job.arguments]
    runpy.run_module(job.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
