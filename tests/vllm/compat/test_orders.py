"""Every row of the registry in each order of import, install and undo on real vLLM, each order in a fresh process.

What an order must do in detail is tested with toys in tests/bare/compat/test_patch_install.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

START = """
import importlib, multiprocessing, sys
from afd_compat import install, registry
from afd_compat.slot import find_slot

REAL = [row for row in registry.declared() if row.function is not None and row.when == "import"]
MODULES = sorted({row.module for row in REAL})


def slots():
    return {row.target: find_slot(sys.modules[row.module], row.qualname) for row in REAL}


def held():
    return {target: slot.get() for target, slot in slots().items()}


def check(done):
    assert len(REAL) >= 5
    assert {row.target: done.state(row) for row in REAL} == dict.fromkeys((row.target for row in REAL), "in place")
    assert not done.problems(), done.problems()
    for value in held().values():
        function = getattr(value, "__func__", value)
        assert function.__wrapped__ is not None and "afd_compat" in function.__code__.co_filename
"""
CASES = {
    "import, install, install again, fork, undo": """
for module in MODULES:
    importlib.import_module(module)
import vllm.v1.worker.gpu_model_runner  # holds set_forward_context by name
before = held()
done = install.install(registry.declared())
check(done)
patched = held()
assert install.install(registry.declared()) is done and held() == patched
rebound = [name for row in REAL for name in done.holders(row)]
assert "vllm.v1.worker.gpu_model_runner:set_forward_context" in rebound, rebound
assert "vllm.v1.engine.core_client:launch_core_engines" in rebound, rebound
child = multiprocessing.get_context("fork").Process(target=check, args=(done,))
child.start()
child.join(60)
assert child.exitcode == 0, child.exitcode
install.uninstall()
assert all(value is before[target] for target, value in held().items())
client = sys.modules["vllm.v1.engine.core_client"]
assert client.launch_core_engines is before["vllm.v1.engine.utils:launch_core_engines"]
""",
    "install, import, undo": """
done = install.install(registry.declared())
assert not {name.partition(".")[0] for name in sys.modules} & {"vllm", "torch"}
for module in MODULES:
    importlib.import_module(module)
check(done)
natives = {target: getattr(value, "__func__", value).__wrapped__ for target, value in held().items()}
assert "vllm.v1.engine.core_client:launch_core_engines" in [name for row in REAL for name in done.holders(row)]
install.uninstall()
assert all(getattr(value, "__func__", value) is natives[target] for target, value in held().items())
assert not any("afd_compat" in type(finder).__module__ for finder in sys.meta_path)
""",
    "spawn, install there, import": """
def work(queue):
    assert "vllm" not in sys.modules
    done = install.install(registry.declared())
    for module in MODULES:
        importlib.import_module(module)
    check(done)
    queue.put(sorted(held()))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=240) == sorted(row.target for row in REAL)
        child.join(60)
        assert child.exitcode == 0, child.exitcode
    finally:
        child.kill()
""",
}


@pytest.mark.parametrize("case", CASES)
def test_orders(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("order") / "case.py"
    script.write_text(START + CASES[case])
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
