"""Names are bound to other values inside the `with` and nowhere else."""

from __future__ import annotations

from types import ModuleType

import pytest

from afd_compat.rebound import rebound


class Owner:
    """A class with a static method, whose descriptor must come back."""

    @staticmethod
    def run() -> str:
        return "native"


def test_names_are_rebound_and_restored() -> None:
    before = vars(Owner)["run"]
    with rebound(Owner, run=staticmethod(lambda: "ours")):
        assert Owner.run() == "ours"
    assert vars(Owner)["run"] is before


def test_an_exception_restores() -> None:
    module = ModuleType("some.module")
    module.name = 1  # type: ignore[attr-defined]
    seen: list[int] = []

    def fail() -> None:
        with rebound(module, name=2):
            seen.append(module.name)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (seen, module.name) == ([2], 1)


def test_a_name_that_is_not_there_is_refused_before_anything_changes() -> None:
    before = vars(Owner)["run"]
    refusal = r"Expected Owner to define gone, found that it does not\."
    with pytest.raises(LookupError, match=refusal), rebound(Owner, run=1, gone=2):
        pass
    assert vars(Owner)["run"] is before
