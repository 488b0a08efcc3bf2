"""A toy `vllm` and patches of it for fresh interpreters, so that no case sees what another one patched."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import afd_compat
from afd_compat.fingerprint import fingerprint

TARGET_TEXT = '''
import functools

calls = []


def plain(a, *, b=2):
    """Adds."""
    calls.append(("plain", a, b))
    return a + b


async def coroutine(a):
    calls.append(("coroutine", a))
    return a


def generator(a):
    sent = yield a
    calls.append(("generator", a, sent))
    return "end"


async def async_generator(a):
    try:
        sent = yield a
        calls.append(("async_generator", a, sent))
        yield sent
    except KeyError as error:
        yield ("caught", str(error))


class Thing:
    def __init__(self, on=False):
        self.on = on

    def method(self, a, *, b=0):
        calls.append(("method", a, b))
        return (self.on, a, b)

    @classmethod
    def of_class(cls, a):
        return (cls, a)

    @staticmethod
    def static(a):
        return a

    @property
    def prop(self):
        """A property."""
        return "native"

    @functools.cached_property
    def cached(self):
        return object()
'''

PATCHES_TEXT = '''
from afd_compat.declaration import patch, seam

on = False


def switched(*args, **kwargs):
    """the switch is on"""
    return on


def declare(name, function, how="wrap", when="import", **more):
    more.setdefault("active", switched if how != "add" else None)
    if how != "add":
        more.setdefault("pin", PINS[name])
    return patch("vllm.toy:" + name, vllm=">=0.30,<0.31", how=how, when=when, processes=("engine",),
                 effect="Says that it was here.", until="never", **more)(function)


def ours(native, *args, **kwargs):
    return ("ours", native(*args, **kwargs))


async def ours_coroutine(native, a):
    return ("ours", await native(a))


def ours_generator(native, a):
    yield "ours"
    return (yield from native(a))


async def ours_async_generator(native, a):
    yield "ours"
    async for item in native(a):
        yield item


plain = declare("plain", ours)
method = declare("Thing.method", ours)
ALL = [plain, method] + [
    declare("coroutine", ours_coroutine), declare("generator", ours_generator),
    declare("async_generator", ours_async_generator), declare("Thing.of_class", ours),
    declare("Thing.static", ours), declare("Thing.prop", ours), declare("Thing.cached", ours),
]
'''
NAMES = (
    "plain", "coroutine", "generator", "async_generator",
    *(f"Thing.{name}" for name in ("method", "of_class", "static", "prop", "cached")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Toy:
    """A folder on the path with the packages `vllm` (toy, holder, late) and `toy_patches`."""

    folder: Path

    def write(self, name: str, text: str) -> None:
        """Write one file below the folder."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def start(self, *parts: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the parts of a script, each without its indentation, in a fresh interpreter."""
        path = os.pathsep.join([str(self.folder), str(Path(afd_compat.__file__).parents[1])])
        script = self.folder / "case.py"
        script.write_text("\n".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
        return subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **env},
            cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def run(self, *parts: str, **env: str) -> str:
        """Run a script, which must succeed, and return what it printed on either stream."""
        done = self.start(*parts, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A toy vLLM 0.30.0 whose text the pins of `toy_patches` fit."""
    made = Toy(tmp_path)
    (tmp_path / "vllm").mkdir()
    made.write("vllm/__init__.py", "")
    made.write("vllm/_version.py", "__version__ = version = '0.30.0'\n")
    made.write("vllm/toy.py", TARGET_TEXT)
    made.write("vllm/holder.py", "from vllm.toy import plain\nfrom vllm.toy import plain as alias\n")
    made.write("vllm/late.py", "from vllm.toy import plain\n")
    pins = {name: fingerprint(TARGET_TEXT, name, "sig") for name in NAMES}
    made.write("toy_patches.py", f"PINS = {pins!r}\n{PATCHES_TEXT}")
    return made
