"""Importing anything of afd_compat, and installing its patches, loads neither vllm nor torch."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import afd_compat
names = [m.name for m in pkgutil.walk_packages(afd_compat.__path__, "afd_compat.")]
assert len(names) > 15, names
for name in names:
    importlib.import_module(name)
from afd_compat import install, registry
install.install(registry.declared())
heavy = sorted(m for m in sys.modules if m.partition(".")[0] in ("vllm", "torch", "numpy", "transformers"))
assert not heavy, heavy
"""


def test_a_clean_interpreter_stays_clean() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
