"""The places that hold a target: the namespace that defines it and every module that imported it by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Slot:
    """One name in one namespace, a module or a class."""

    owner: ModuleType | type
    name: str

    def get(self) -> object:
        """The value itself, no descriptor resolved, or MISSING where the name is not defined right here."""
        return vars(self.owner).get(self.name, MISSING)

    def put(self, value: object) -> None:
        """Bind `value`, or delete the name for MISSING."""
        if value is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def __str__(self) -> str:
        if isinstance(self.owner, ModuleType):
            return f"{self.owner.__name__}:{self.name}"
        return f"{self.owner.__module__}:{self.owner.__qualname__}.{self.name}"


def find_slot(module: ModuleType, qualname: str) -> Slot:
    """The slot of `qualname` in an imported module. Raises LookupError where an outer class is missing."""
    owner: ModuleType | type = module
    *outer, name = qualname.split(".")
    for part in outer:
        inner = vars(owner).get(part)
        if not isinstance(inner, type):
            raise LookupError(f"the class {part} was expected in {owner.__name__}, but it is not there")
        owner = inner
    return Slot(owner, name)


def holders(value: object, home: Slot) -> tuple[Slot, ...]:
    """Every other module-level name, under any alias, bound to `value`: `from x import f` makes them."""
    entries: list[object] = list(sys.modules.values())  # whatever the typing says, anything can be there
    modules = [entry for entry in entries if isinstance(entry, ModuleType)]
    found = (Slot(module, name) for module in modules for name, held in list(vars(module).items()) if held is value)
    return tuple(slot for slot in found if slot != home)
