"""Each order of import, install and undo, in an interpreter of its own."""

from __future__ import annotations

import textwrap
from typing import Protocol

import pytest

# A name of the script itself that is bound to a target is a holder too, hence the originals in a `box`.
START = "import sys, afd_compat.install as afd, toy_patches as t\n"
WORKS = """
t.on = True
assert toy.plain(1) == ("ours", 3) and toy.Thing(5).method(1, b=2) == ("ours", (5, 1, 2))
t.on = False
assert toy.plain(1) == 3 and toy.Thing(5).method(1, b=2) == (5, 1, 2)
"""
HOLDERS = "assert done.holders(t.plain) == ('vllm.holder:alias', 'vllm.holder:plain'), done.holders(t.plain)\n"


class Toy(Protocol):
    """The fixture of this folder."""

    def write(self, name: str, text: str) -> None: ...

    def run(self, *parts: str, **env: str) -> str: ...


def test_import_then_install_rebinds_and_lists_holders(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy, holder
        done = afd.install(t.ALL)
        """,
        WORKS,
        HOLDERS,
        """
        assert holder.alias is holder.plain is toy.plain
        assert not done.problems() and done.state(t.plain) == 'in place'
        """,
    )


def test_install_then_import_loads_nothing_by_itself(toy: Toy) -> None:
    toy.run(
        START,
        """
        done = afd.install(t.ALL)
        assert not any(m.partition('.')[0] in ('vllm', 'torch') for m in sys.modules)
        assert done.state(t.plain) == 'waits for import'
        from vllm import holder, toy
        """,
        WORKS,
        HOLDERS,
        """
        assert all(done.state(p) == 'in place' for p in t.ALL)
        assert not any(type(f).__name__ == 'ImportWatch' for f in sys.meta_path)
        assert type(toy.__loader__).__name__ == type(toy.__spec__.loader).__name__ == 'SourceFileLoader'
        """,
    )


def test_a_watched_module_can_be_looked_up_and_run_without_being_imported(toy: Toy) -> None:
    toy.run(
        START,
        """
        from importlib.util import find_spec
        afd.install(t.ALL)
        assert 'def plain' in find_spec('vllm.toy').loader.get_source('vllm.toy')
        import runpy; assert runpy.run_module('vllm.toy')['plain'](1) == 3
        from vllm import toy
        """,
        WORKS,
    )


def test_an_import_that_fails_once_is_patched_the_second_time(toy: Toy) -> None:
    toy.run(
        START,
        """
        import os
        afd.install(t.ALL)
        text = open('vllm/toy.py').read()
        open('vllm/toy.py', 'w').write(text + 'raise OSError')
        try:
            import vllm.toy
        except OSError: pass
        else: raise AssertionError
        open('vllm/toy.py', 'w').write(text)
        from vllm import toy
        """,
        WORKS,
    )


def test_installing_twice_is_installing_once(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        first = afd.install(t.ALL)
        held = toy.plain
        assert afd.install(t.ALL) is first is afd.install(t.ALL[:2]) and toy.plain is held
        """,
        WORKS,
    )


def test_a_later_set_is_added(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy, holder
        afd.install([t.method])
        done = afd.install([t.plain])
        """,
        WORKS,
        HOLDERS,
        """
        assert done.patches == (t.method, t.plain) and toy.plain.__wrapped__.__name__ == 'plain'
        assert not hasattr(toy.plain.__wrapped__, '__wrapped__')
        """,
    )


def test_undo_restores_the_very_objects_also_in_later_holders(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy, holder
        names, attributes = dict(vars(toy)), dict(vars(toy.Thing))
        afd.install(t.ALL)
        from vllm import late
        assert late.plain is toy.plain is not names['plain']
        afd.uninstall()
        assert names['plain'] is late.plain is holder.plain is holder.alias
        assert all(vars(toy)[name] is value for name, value in names.items())
        assert all(vars(toy.Thing)[name] is value for name, value in attributes.items())
        assert afd.installed() is None
        """,
    )


def test_undo_after_a_later_import_restores_what_the_module_made(toy: Toy) -> None:
    toy.run(
        START,
        """
        afd.install(t.ALL)
        from vllm import toy, late
        made = toy.plain.__wrapped__
        afd.uninstall()
        assert toy.plain is late.plain is made
        """,
    )


def test_undo_before_the_import_forgets_it(toy: Toy) -> None:
    toy.run(
        START,
        """
        afd.install(t.ALL)
        afd.uninstall()
        from vllm import toy
        t.on = True
        assert toy.plain(1) == 3
        """,
    )


def test_two_patches_on_one_target_are_refused_and_change_nothing(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        twin = t.declare('plain', lambda native, a: a)
        try: afd.install([t.plain, twin])
        except ValueError as error: assert 'vllm.toy:plain' in str(error)
        else: raise AssertionError
        assert toy.plain is box[0]
        afd.install([t.plain])
        try: afd.install([twin])
        except ValueError: pass
        else: raise AssertionError
        t.on = True
        assert toy.plain(1) == ('ours', 3)
        """,
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_have_it(toy: Toy, method: str) -> None:
    """A fork inherits; a spawned child loads the plugin again and finds the patched target by name."""
    child = """
    afd.install(t.ALL)
    from vllm import toy

    def work(queue):
        t.on = True
        queue.put(toy.plain(1))
    """
    toy.write("child.py", START + textwrap.dedent(child))
    toy.run(
        f"method = {method!r}",
        """
        import multiprocessing as mp

        if __name__ == '__main__':
            import child
            context = mp.get_context(method)
            queue = context.Queue()
            process = context.Process(target=child.work, args=(queue,))
            process.start()
            assert queue.get(timeout=30) == ('ours', 3)
            process.join(30)
            assert process.exitcode == 0
        """,
    )


def test_a_patched_function_is_pickled_by_name(toy: Toy) -> None:
    toy.run(START, """
        import pickle
        from vllm import toy
        afd.install(t.ALL)
        assert pickle.loads(pickle.dumps(toy.plain)) is toy.plain
        """)  # fmt: skip


def test_replace_and_add(toy: Toy) -> None:
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        swap = t.declare('plain', lambda a, *, b=2: a * 100, how='replace')
        new = t.declare('Thing.extra', lambda self: self.on, how='add')
        done = afd.install([swap, new])
        assert not done.problems() and toy.plain(3) == 5
        t.on = True
        assert toy.plain(3) == 300 and toy.Thing(7).extra() == 7
        afd.uninstall()
        assert toy.plain is box[0] and not hasattr(toy.Thing, 'extra')
        """,
    )


def test_what_cannot_be_wrapped_takes_everything_out_again(toy: Toy) -> None:
    """The class is in the text, so only the import shows that the name is something else by then."""
    toy.write("vllm/odd.py", "def thing(): pass\nthing = 3\n")
    toy.run(
        START,
        """
        from vllm import toy
        box = [toy.plain]
        from afd_compat.fingerprint import fingerprint
        from afd_compat.declaration import patch
        odd = patch('vllm.odd:thing', vllm='<0.31', how='wrap', processes=(), effect='', until='',
            active=t.switched,
            pin=fingerprint(open('vllm/odd.py').read(), 'thing', 'sig'))(t.ours)
        done = afd.install([t.plain, odd])
        assert toy.plain is not box[0] and not done.problems()
        import vllm.odd
        assert toy.plain is box[0] and vllm.odd.thing == 3
        assert 'vllm.odd:thing' in done.problems()[0] and 'int' in done.problems()[0]
        try: afd.require()
        except RuntimeError as error: print(error)
        else: raise AssertionError
        """,
    )
