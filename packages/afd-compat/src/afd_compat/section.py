"""Typed reading of one JSON object, so that every bad key or value gets its one sentence in one place."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence

from afd_compat.frozen import FrozenMapping


class Section:
    """The keys of one object under their short names; errors show its `name`, no `hidden` value."""

    def __init__(
        self,
        raw: object,
        *,
        name: str,
        keys: Sequence[str],
        spellings: Mapping[str, str],
        hidden: Sequence[str] = (),
    ) -> None:
        """Sort `raw` under `keys`; `spellings` maps other accepted spellings to them.

        Raises ValueError when `raw` is no object, a key is unknown, or a key is given under two spellings.
        """
        self.name = name
        self._hidden = frozenset(hidden)
        self._given: dict[str, object] = {}
        if not isinstance(raw, Mapping):
            remedy = "pass the object itself, without quotes around it" if isinstance(raw, str) else "pass an object"
            raise ValueError(f"{name} must be a JSON object, but it is {_kind(raw)}; {remedy}.")
        used: dict[str, str] = {}
        for spelling, value in raw.items():
            key = spellings.get(str(spelling), str(spelling))
            if key not in keys:
                raise ValueError(self._unknown(str(spelling), [*keys, *spellings]))
            if key in used:
                raise ValueError(f"{name} must give {key} once, but it has {used[key]!r} and {spelling!r}; remove one.")
            used[key] = str(spelling)
            self._given[key] = value

    def has(self, key: str) -> bool:
        """Whether the user gave `key` under any spelling."""
        return key in self._given

    def text(
        self,
        key: str,
        default: str,
        expected: str = "a string that is not empty and has no spaces, NUL or lone surrogates",
        remedy: str = "write such a string in quotes",
    ) -> str:
        """A string that `is_word`."""
        value = self._given.get(key, default)
        if not isinstance(value, str) or not is_word(value):
            raise self.wrong(key, expected, remedy)
        return value

    def host(self, key: str, default: str) -> str:
        """A host name or address; ``idna`` is what sockets put it through."""
        value = self.text(key, default, "a host name or address", "correct it")
        try:
            value.encode("idna")
        except UnicodeError:
            raise self.wrong(key, "a host name or address", "correct it") from None
        return value

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """One of `options`; without a default the key must be there."""
        expected = " or ".join(repr(option) for option in options)
        if not self.has(key):
            if default is not None:
                return default
            raise ValueError(f"{self.name} must have {key} ({expected}), but it is missing; add it for this server.")
        value = self._given[key]
        if not isinstance(value, str) or value not in options:
            raise self.wrong(key, expected, "choose one of them")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """An int from `low` to `high`, both included; a bool is not an int."""
        value = self._given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}", f"leave it out for {default}")
        return value

    def seconds(self, key: str, default: float) -> float:
        """A finite number of seconds above zero."""
        value = self._given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_SECONDS:
            raise self.wrong(key, "a finite number of seconds above 0", f"leave it out for {default:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false, never 0, 1 or a string."""
        value = self._given.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", "write it without quotes")
        return value

    def mapping(self, key: str) -> FrozenMapping:
        """An object with string keys, frozen; absent means empty."""
        value = self._given.get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "an object with string keys", "pass an object or leave it out")
        try:
            return FrozenMapping(value)
        except RecursionError:
            raise self.wrong(key, "an object nested a few levels deep", "flatten it") from None

    def wrong(self, key: str, expected: str, remedy: str) -> ValueError:
        """The sentence for a value that is not what `expected` says."""
        value = self._given.get(key)
        found = f"a {type(value).__name__} (not shown)" if key in self._hidden else _show(value)
        return ValueError(f"{self.name}.{key} must be {expected}, but it is {found}; {remedy}.")

    def _unknown(self, spelling: str, known: Sequence[str]) -> str:
        near = difflib.get_close_matches(spelling, known, n=1)
        remedy = f"did you mean {near[0]!r}" if near else f"use one of {', '.join(sorted(known))}"
        return f"{self.name} must have known keys only, but it has {_show(spelling)}; {remedy}."


def is_word(text: str) -> bool:
    """Whether `text` is not empty, holds no white space, and can be an environment variable and UTF-8 everywhere.

    JSON can write NUL and halves of surrogate pairs, of which the first ends a C string and the others no codec takes.
    """
    return text.split() == [text] and not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text)


MAX_SECONDS = 10 * 365 * 24 * 3600.0  # ten years: more is infinity or a slip, and sockets refuse it


def _show(value: object) -> str:
    """A short form of `value` on one line."""
    try:
        return reprlib.repr(value).replace("\n", " ")
    except ValueError:  # a number of thousands of digits, which Python does not print
        return f"a {type(value).__name__} too large to show"


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
