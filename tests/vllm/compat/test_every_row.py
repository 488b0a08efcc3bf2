"""Whatever the registry holds, now or later: a row that is not active leaves vLLM's function as it is."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterator

import pytest

from afd_compat import install, registry
from afd_compat.declaration import Patch
from afd_compat.slot import MISSING, Slot, find_slot

REAL = [entry for entry in registry.declared() if entry.function is not None]
WRAPPED = [entry for entry in REAL if entry.how != "add"]
Call = tuple[tuple[object, ...], dict[str, object]]


def home(entry: Patch) -> Slot:
    """Where vLLM defines the target."""
    return find_slot(importlib.import_module(entry.module), entry.qualname)


def function_of(raw: object) -> Callable[..., object]:
    """The function inside whatever kind of descriptor sits in a namespace."""
    inner = getattr(raw, "__func__", None) or getattr(raw, "fget", None) or getattr(raw, "func", None) or raw
    assert callable(inner)
    return inner


def recording(native: Callable[..., object], calls: list[Call]) -> Callable[..., object]:
    """A function of the native's kind and signature that only records what it was called with."""

    def plain(*args, **kwargs):
        calls.append((args, kwargs))
        return "native"

    async def coroutine(*args, **kwargs):
        return plain(*args, **kwargs)

    def generator(*args, **kwargs):
        yield plain(*args, **kwargs)

    async def async_generator(*args, **kwargs):
        yield plain(*args, **kwargs)

    kinds = (
        (inspect.iscoroutinefunction, coroutine),
        (inspect.isasyncgenfunction, async_generator),
        (inspect.isgeneratorfunction, generator),
    )
    recorder = next((made for is_kind, made in kinds if is_kind(native)), plain)
    recorder.__signature__ = inspect.signature(native)  # type: ignore[attr-defined]
    return recorder


def finish(result: object) -> object:
    """What a call gives in the end, whatever its kind."""
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        return next(result)
    if inspect.isasyncgen(result):

        async def first() -> object:
            return await anext(result)

        return asyncio.run(first())
    return result


def forms(native: Callable[..., object]) -> list[Call]:
    """Calls of one signature: as much by position as possible, as much by keyword, without the defaults."""
    every = list(inspect.signature(native).parameters.values())
    values = {each.name: object() for each in every}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    real = [each for each in every if each.kind not in variadic]
    by_place = [each for each in real if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    needed = [each for each in by_place if each.default is inspect.Parameter.empty]
    own = values[by_place[0].name] if by_place and by_place[0].name == "self" else None
    selfless = {each.name: values[each.name] for each in real if each.name != "self"}
    found: list[Call] = [
        (tuple(values[each.name] for each in by_place),
         {each.name: values[each.name] for each in real if each.kind is inspect.Parameter.KEYWORD_ONLY}),
        (() if own is None else (own,), selfless),
        (tuple(values[each.name] for each in needed), {}),
    ]  # fmt: skip
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in every):
        found.append(((object(),), {"vllm_config": object(), "something_else": object()}))
    return found


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    install.uninstall()
    yield
    install.uninstall()


@pytest.mark.parametrize("entry", [entry for entry in WRAPPED if entry.when == "import"], ids=lambda e: e.target)
def test_inactive_calls_the_native_once_with_the_same_arguments(entry: Patch) -> None:
    slot, calls = home(entry), list[Call]()
    native = slot.get()
    recorder = recording(function_of(native), calls)
    slot.put(staticmethod(recorder) if isinstance(native, staticmethod) else recorder)
    try:
        done = install.install(registry.declared())
        assert done.state(entry) == "in place"
        patched = function_of(slot.get())
        assert patched is not recorder
        for args, kwargs in forms(function_of(native)):
            calls.clear()
            assert finish(patched(*args, **kwargs)) == "native"
            [(got, named)] = calls
            assert len(got) == len(args)
            assert all(mine is theirs for mine, theirs in zip(got, args, strict=True))
            assert named.keys() == kwargs.keys()
            assert all(named[name] is value for name, value in kwargs.items())
        install.uninstall()
        assert function_of(slot.get()) is recorder
    finally:
        install.uninstall()
        slot.put(native)


@pytest.mark.parametrize("entry", WRAPPED, ids=lambda entry: entry.target)
def test_a_patched_function_is_of_the_natives_kind_and_signature(entry: Patch) -> None:
    slot = home(entry)
    raw = slot.get()
    native = function_of(raw)
    install.install(registry.declared())
    held = slot.get()
    if entry.when == "scoped":
        assert held is raw, "a scoped patch is in place nowhere else"
        return
    assert type(held) is type(raw)
    patched = function_of(held)
    for ask in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        assert ask(patched) == ask(native)
    assert inspect.signature(patched) == inspect.signature(native)
    assert (patched.__module__, patched.__qualname__) == (native.__module__, native.__qualname__)
    install.uninstall()
    assert slot.get() is raw


def test_all_rows_can_be_in_place_together() -> None:
    done = install.install(registry.declared())
    for entry in REAL:
        assert home(entry).get() is not MISSING
        assert done.state(entry) in ("in place", "scoped")
    done.require()


@pytest.mark.parametrize(
    "name",
    [
        "vllm.entrypoints", "vllm.v1.core.sched", "vllm.v1.sample", "vllm.v1.worker.gpu.sample",
        "vllm.v1.attention", "vllm.attention", "vllm.v1.core.kv_cache_manager", "vllm.v1.core.block_pool",
        "vllm.v1.kv_cache_interface", "vllm.model_executor.layers", "vllm._custom_ops",
    ],
)  # fmt: skip
def test_what_is_not_patched(name: str) -> None:
    """API server, scheduler, sampler, attention and KV kernels."""
    assert [entry.target for entry in registry.declared() if f"{entry.module}.".startswith(f"{name}.")] == []
