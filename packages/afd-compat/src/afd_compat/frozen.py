"""A mapping that can sit in a frozen value, because `MappingProxyType` can neither be hashed nor pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class FrozenMapping(Mapping[str, object]):
    """Read-only, hashable and picklable mapping; nested mappings are frozen too and lists become tuples."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, object] | None = None) -> None:
        self._items: dict[str, object] = {key: freeze(value) for key, value in (items or {}).items()}

    def __getitem__(self, key: str) -> object:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type[FrozenMapping], tuple[dict[str, object]]]:
        return FrozenMapping, (dict(self._items),)


def freeze(value: object) -> object:
    """Return `value` with every mapping, list and tuple inside it replaced by an immutable one."""
    if isinstance(value, Mapping):
        return FrozenMapping({str(key): item for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value
