"""One patch put in place, and its way back to the very objects that were there before."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from afd_compat.slot import MISSING, Slot, find_slot, holders
from afd_compat.wrapper import Fits, wrap_value

if TYPE_CHECKING:
    from afd_compat.declaration import Patch


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch in place: `home` and `found` held `native` (MISSING for an addition) and hold `value` now."""

    patch: Patch
    home: Slot
    native: object
    value: object
    found: tuple[Slot, ...] = ()

    def holders(self) -> tuple[Slot, ...]:
        """The other modules that hold the patched function by name now, in an order that does not change."""
        if self.native is MISSING or not isinstance(self.home.owner, ModuleType):
            return ()  # methods are looked up on their class, nobody holds them by name
        return tuple(sorted(holders(self.value, self.home), key=str))

    def again(self) -> None:
        """Put the patch in place once more, where it was before `undo`, without a search."""
        for slot in (self.home, *self.found):
            slot.put(self.value)

    def undo(self, *, search: bool = True) -> None:
        """Bind the native again; `search` also finds the modules that imported the patched function since."""
        for slot in self.holders() if search else self.found:
            slot.put(self.native)
        self.home.put(self.native)


def apply(patch: Patch, fits: Fits = lambda: True) -> Applied:
    """Put `patch` in place in its module, which is imported already, and in all holders.

    `fits` says whether ours may run, asked when the patch is active in a call.
    Raises LookupError or TypeError, and changes nothing, where the target is not what was declared.
    """
    home = find_slot(sys.modules[patch.module], patch.qualname)
    native = home.get()
    if patch.how == "add":
        if native is not MISSING:
            raise LookupError(f"{patch.target} was expected to be absent, but vLLM defines it now")
        applied = Applied(patch, home, MISSING, patch.function)
    elif native is MISSING:
        raise LookupError(f"{patch.target} was expected to be defined there, but it is not")
    else:
        found = holders(native, home) if isinstance(home.owner, ModuleType) else ()
        applied = Applied(patch, home, native, wrap_value(patch, native, fits), found)
    applied.again()
    return applied
