"""A vLLM without AFD pays at most 50 ms per process for the plugin, and imports nothing heavy for it."""

from __future__ import annotations

from tools import bench_start


def test_the_plugin_costs_little_and_imports_nothing_heavy() -> None:
    best = float("inf")
    for _ in range(10):  # the least, as neighbours on the machine only add
        took, heavy = bench_start.run()
        assert heavy == []
        best = min(best, took)
        if best <= bench_start.LIMIT_MS:
            return
    raise AssertionError(f"the plugin took {best:.1f} ms of processor time, {bench_start.LIMIT_MS:g} are the limit")
