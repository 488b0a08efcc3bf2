"""Scoped patches are in place inside their `with` and nowhere else."""

from __future__ import annotations

from typing import Protocol

START = """
import sys, toy_patches as t
from afd_compat.scoped import Scope
plain = t.declare("plain", t.ours, when="scoped", active=None)
method = t.declare("Thing.method", t.ours, when="scoped", active=None)
"""


class Toy(Protocol):
    """The fixture of this folder."""

    def write(self, name: str, text: str) -> None: ...

    def run(self, *parts: str, **env: str) -> str: ...


def test_a_scope_can_be_entered_again_and_rebinds_holders(toy: Toy) -> None:
    toy.run(
        START,
        """
        scope = Scope(plain, method)
        assert 'vllm' not in sys.modules
        from vllm import toy, holder
        box = [toy.plain]
        for _ in range(3):
            with scope:
                assert toy.plain(1) == holder.alias(1) == ('ours', 3) and toy.Thing().method(1)[0] == 'ours'
            assert toy.plain is holder.alias is holder.plain is box[0]
            assert toy.Thing().method(1) == (False, 1, 0)
        """,
    )


def test_modules_imported_inside_get_the_native_back(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        scope = Scope(plain)
        with scope:
            from vllm import late
            assert late.plain(1) == ('ours', 3)
        assert late.plain is box[0]
        with scope: assert late.plain(1) == ('ours', 3)
        assert late.plain is box[0] is toy.plain
        """,
    )


def test_an_exception_restores(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        try:
            with Scope(plain): raise KeyError
        except KeyError: pass
        assert toy.plain is box[0]
        with Scope(plain): pass
        """,
    )


def test_nested_use_on_one_target_is_refused(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        box, scope = [toy.plain], Scope(plain)
        for inner in (scope, Scope(method, plain)):
            with scope:
                try:
                    with inner: raise AssertionError
                except RuntimeError as error: assert 'vllm.toy:plain' in str(error)
                assert toy.plain(1) == ('ours', 3) and toy.Thing().method(1) == (False, 1, 0)
            assert toy.plain is box[0]
        with Scope(plain), Scope(method): pass
        """,
    )


def test_all_or_none(toy: Toy) -> None:
    toy.write("vllm/odd.py", "def thing(): pass\nthing = 3\n")
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        from afd_compat.declaration import patch
        from afd_compat.fingerprint import fingerprint
        odd = patch('vllm.odd:thing', vllm='<0.31', how='wrap', when='scoped', processes=(),
            effect='', until='',
            pin=fingerprint(open('vllm/odd.py').read(), 'thing', 'sig'))(t.ours)
        try:
            with Scope(plain, odd): raise AssertionError
        except TypeError: pass
        assert toy.plain is box[0]
        """,
    )


def test_drift_and_the_wrong_kind_are_refused(toy: Toy) -> None:
    toy.run(
        START,
        """
        try: Scope(t.plain)
        except ValueError as error: assert 'scoped' in str(error)
        else: raise AssertionError
        text = open('vllm/toy.py').read()
        open('vllm/toy.py', 'w').write(text.replace('def plain(a, ', 'def plain(a, z, '))
        from afd_compat.drift import DriftError
        try: Scope(plain)
        except DriftError as error: assert 'sig:' in str(error)
        else: raise AssertionError
        """,
    )
