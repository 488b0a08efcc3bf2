"""Callers cannot tell a patched function from the native one while its patch is not active."""

from __future__ import annotations

from typing import Protocol

import pytest

START = """
import asyncio, functools, inspect, afd_compat.install as afd, toy_patches as t
from vllm import toy
native = {name: getattr(toy, name) for name in ("plain", "coroutine", "generator", "async_generator")}
raw = dict(vars(toy.Thing))
afd.install(t.ALL)

async def collect(agen):
    return [item async for item in agen]

def finish(generator, sent):
    items = [next(generator)]
    while True:
        try: items.append(generator.send(sent))
        except StopIteration as stop: return items, stop.value
"""


class Toy(Protocol):
    """The fixture of this folder."""

    def run(self, *parts: str, **env: str) -> str: ...


@pytest.mark.parametrize(
    "case",
    [
        "assert toy.plain(1, b=3) == 4 and toy.calls == [('plain', 1, 3)]",
        "try: toy.plain(1, 2)\nexcept TypeError as error: assert 'plain()' in str(error)\nelse: assert False",
        "assert asyncio.run(toy.coroutine(1)) == 1 and toy.calls == [('coroutine', 1)]",
        "assert finish(toy.generator(1), 2) == ([1], 'end') and toy.calls == [('generator', 1, 2)]",
        "assert toy.Thing(4).method(1, b=3) == (4, 1, 3) and toy.calls == [('method', 1, 3)]",
        "assert toy.Thing.of_class(1) == toy.Thing().of_class(1) == (toy.Thing, 1)",
        "class Sub(toy.Thing): pass\nassert Sub.of_class(1) == (Sub, 1)",
        "assert toy.Thing.static(1) == toy.Thing().static(1) == 1",
        "assert toy.Thing().prop == 'native' and toy.Thing.prop.__doc__ == 'A property.'",
        "thing = toy.Thing()\nassert thing.cached is thing.cached and 'cached' in vars(thing)",
        "assert all(inspect.signature(getattr(toy, n)) == inspect.signature(f) for n, f in native.items())",
        "assert all(type(vars(toy.Thing)[n]) is type(v) for n, v in raw.items())",
        "g = toy.generator(1); next(g); g.close()",
    ],
)
def test_inactive_is_native(toy: Toy, case: str) -> None:
    toy.run(START, case)


def test_kinds_are_kept(toy: Toy) -> None:
    toy.run(
        START,
        """
        checks = [inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction]
        for name, function in native.items():
            assert [c(getattr(toy, name)) for c in checks] == [c(function) for c in checks], name
            assert getattr(toy, name).__qualname__ == function.__qualname__
            assert getattr(toy, name) is not function
        """,
    )


def test_async_generators_pass_on_what_is_sent_thrown_and_closed(toy: Toy) -> None:
    toy.run(
        START,
        """
        async def main():
            agen = toy.async_generator(1)
            assert await agen.__anext__() == 1 and await agen.asend(5) == 5
            assert [x async for x in agen] == [] and toy.calls == [('async_generator', 1, 5)]
            agen = toy.async_generator(1)
            await agen.__anext__()
            assert await agen.athrow(KeyError('k')) == ('caught', "'k'")
            agen = toy.async_generator(1)
            await agen.__anext__()
            await agen.aclose()
            try: await agen.__anext__()
            except StopAsyncIteration: pass
            else: raise AssertionError
        asyncio.run(main())
        """,
    )


def test_active_is_ours(toy: Toy) -> None:
    toy.run(
        START,
        """
        t.on = True
        assert toy.plain(1) == ('ours', 3) and asyncio.run(toy.coroutine(1)) == ('ours', 1)
        assert finish(toy.generator(1), None) == (['ours', 1], 'end')
        assert asyncio.run(collect(toy.async_generator(1))) == ['ours', 1, None]
        assert toy.Thing.of_class(1) == ('ours', (toy.Thing, 1)) and toy.Thing.static(1) == ('ours', 1)
        thing = toy.Thing()
        assert thing.prop == ('ours', 'native') and thing.cached[0] == 'ours'
        assert thing.cached is thing.cached
        """,
    )


def test_active_is_asked_with_the_arguments_of_the_call(toy: Toy) -> None:
    toy.run(
        "import afd_compat.install as afd, toy_patches as t\nfrom vllm import toy\nseen = []\n"
        "def ask(*args, **kwargs):\n    seen.append((args, kwargs))\n    return args[0].on\n"
        "afd.install([t.declare('Thing.method', t.ours, active=ask)])\n"
        "on, off = toy.Thing(True), toy.Thing()\n"
        "assert off.method(1, b=2) == (False, 1, 2) and on.method(1, b=2) == ('ours', (True, 1, 2))\n"
        "assert seen == [((off, 1), {'b': 2}), ((on, 1), {'b': 2})]"
    )
