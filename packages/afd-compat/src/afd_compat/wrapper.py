"""Wrappers that nobody can tell from the native function while their patch is not active."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import cast

from afd_compat.declaration import Native, Patch

Fits = Callable[[], bool]
_Choose = Callable[[tuple[object, ...], dict[str, object]], Native]


def wrap_value(patch: Patch, raw: object, fits: Fits) -> object:
    """What to put in the place of `raw`, the value in the target's namespace: the same kind of descriptor.

    `fits` is asked in calls for which the patch is active; where it says no, the native runs alone. Raises
    TypeError for a value that is no function, method or property.
    """
    if isinstance(raw, staticmethod):
        return staticmethod(_wrap(patch, raw.__func__, fits))
    if isinstance(raw, classmethod):
        return classmethod(_wrap(patch, raw.__func__, fits))
    if isinstance(raw, property) and raw.fget is not None:
        return property(_wrap(patch, raw.fget, fits), raw.fset, raw.fdel, raw.__doc__)
    if isinstance(raw, functools.cached_property):
        cached = functools.cached_property(_wrap(patch, raw.func, fits))
        cached.__set_name__(object, raw.attrname or raw.func.__name__)
        return cached
    if inspect.isroutine(raw):
        return _wrap(patch, raw, fits)
    raise TypeError(f"A function, method or property was expected at {patch.target}, but it is a {type(raw).__name__}")


def _wrap(patch: Patch, native: Native, fits: Fits) -> Native:
    """A wrapper of the native's own kind: callers ask `inspect` whether it is a coroutine or a generator."""
    assert patch.function is not None, "a row without a body is never installed"
    replacement, active = patch.function, patch.active
    ours = functools.partial(replacement, native) if patch.how == "wrap" else replacement

    def choose(args: tuple[object, ...], kwargs: dict[str, object]) -> Native:
        return ours if (active is None or active(*args, **kwargs)) and fits() else native

    if inspect.iscoroutinefunction(native):
        return _coroutine(native, choose)
    if inspect.isasyncgenfunction(native):
        return _async_generator(native, choose)
    if inspect.isgeneratorfunction(native):
        return _generator(native, choose)

    @functools.wraps(native)
    def wrapper(*args: object, **kwargs: object) -> object:
        return choose(args, kwargs)(*args, **kwargs)

    return wrapper


def _coroutine(native: Native, choose: _Choose) -> Native:
    @functools.wraps(native)
    async def wrapper(*args: object, **kwargs: object) -> object:
        return await cast("Awaitable[object]", choose(args, kwargs)(*args, **kwargs))

    return wrapper


def _generator(native: Native, choose: _Choose) -> Native:
    @functools.wraps(native)
    def wrapper(*args: object, **kwargs: object) -> Generator[object, object, object]:
        return (yield from cast("Generator[object, object, object]", choose(args, kwargs)(*args, **kwargs)))

    return wrapper


def _async_generator(native: Native, choose: _Choose) -> Native:
    @functools.wraps(native)
    async def wrapper(*args: object, **kwargs: object) -> AsyncGenerator[object, object]:
        inner = cast("AsyncGenerator[object, object]", choose(args, kwargs)(*args, **kwargs))
        try:
            value = await inner.__anext__()
            while True:  # what `yield from` would do, which async generators lack
                try:
                    sent = yield value
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on, not handled
                    value = await inner.athrow(error)
                else:
                    value = await inner.asend(sent)
        except StopAsyncIteration:
            return

    return wrapper
