"""The rows of asynchronous data parallelism on vLLM's own functions, with a simulated section, active and not."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from vllm import forward_context
from vllm.config import ParallelConfig, VllmConfig
from vllm.v1.engine import EngineCoreRequestType, core, core_client, utils

from afd_compat import install, registry
from afd_compat.patches import async_dp_engine
from afd_compat.patches.async_dp_engine import start_engine
from afd_compat.patches.async_dp_forward_context import without_dp_metadata
from afd_compat.slot import Slot, holders
from afd_compat.version import installed_version

ASYNC: dict[str, object] = {"afd": {"role": "attention", "async_dp": True}}
OLDER: dict[str, object] = {"afd": {"afd_role": "attention", "async": True}}
INACTIVE: list[dict[str, object]] = [{}, {"afd": {"role": "attention"}}, {"afd": {"role": "attention", "async": False}}]


@pytest.fixture(autouse=True)
def patched() -> Iterator[install.Installation]:
    install.uninstall()
    yield install.install(registry.declared())
    install.uninstall()


def dp2() -> ParallelConfig:
    """Two local ranks of data parallelism."""
    return ParallelConfig(data_parallel_size=2, data_parallel_size_local=2, is_moe_model=True)


def engine_config(additional: dict[str, object], parallel: ParallelConfig) -> SimpleNamespace:
    """What starting an engine reads of its configuration, of a MoE model."""
    return SimpleNamespace(
        additional_config=additional, parallel_config=parallel, kv_transfer_config=None, shutdown_timeout=0,
        needs_dp_coordinator=True, cache_config=None, logging_config=None, watchdog_config=None,
        model_config=SimpleNamespace(is_moe=True, multimodal_config=None),
    )  # fmt: skip


class Engine:
    """Stands for both engine classes; its loop ends at once."""

    made: list[tuple[str, dict[str, object]]]
    shutdown_state = None

    def run_busy_loop(self) -> None:
        raise SystemExit

    def shutdown(self) -> None: ...

    def has_work(self) -> bool:
        return False


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    """Which engine class is started with what; the process around it stays as it is."""
    made: list[tuple[str, dict[str, object]]] = []
    run = core.EngineCoreProc.run_engine_core

    def kind(name: str) -> type[Engine]:
        def init(self: Engine, **kwargs: object) -> None:
            made.append((name, kwargs))

        return type(name, (Engine,), {"__init__": init, "run_engine_core": staticmethod(run)})

    for name in ("EngineCoreProc", "DPEngineCoreProc"):
        monkeypatch.setattr(core, name, kind(name))
    for name in (
        "decorate_logs",
        "set_process_title",
        "maybe_init_worker_tracer",
        "configure_logging",
        "start_watch_dog",
    ):
        if hasattr(core, name):
            monkeypatch.setattr(core, name, lambda *_, **__: None)
    return made


def run_engine(additional: dict[str, object], rank: int) -> ParallelConfig:
    """Runs vLLM's own start of an engine process, up to the end of its loop."""
    parallel = dp2()
    with pytest.raises(SystemExit):
        core.EngineCoreProc.run_engine_core(
            vllm_config=engine_config(additional, parallel), dp_rank=rank, local_dp_rank=rank, log_stats=False
        )
    return parallel


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("additional", [ASYNC, OLDER])
def test_each_async_rank_runs_the_engine_of_independent_ranks(
    engines: list[tuple[str, dict[str, object]]], additional: dict[str, object], rank: int
) -> None:
    parallel = run_engine(additional, rank)
    [(name, kwargs)] = engines
    assert name == "EngineCoreProc"
    assert kwargs["engine_index"] == rank == parallel.data_parallel_index
    assert kwargs["vllm_config"].parallel_config is parallel  # type: ignore[attr-defined]
    assert (parallel.data_parallel_size, parallel.data_parallel_rank) == (1, 0)
    assert core.DPEngineCoreProc.__name__ == "DPEngineCoreProc"


@pytest.mark.parametrize("additional", [*INACTIVE, {"afd": {"role": "ffn", "async_dp": True}}])
def test_other_ranks_run_vllms_choice(
    engines: list[tuple[str, dict[str, object]]], additional: dict[str, object]
) -> None:
    parallel = run_engine(additional, 1)
    [(name, kwargs)] = engines
    assert name == "DPEngineCoreProc"
    assert "engine_index" not in kwargs
    assert (parallel.data_parallel_size, parallel.data_parallel_rank) == (2, 1)


class Launch:
    """What a launch of engines made: stands for coordinator, processes and the wait for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waves: list[object] = []
        self.coordinated: list[object] = []
        self.targets: list[object] = []
        monkeypatch.setattr(utils, "DPCoordinator", self.coordinator)
        monkeypatch.setattr(utils, "CoreEngineProcManager", self.manager)
        monkeypatch.setattr(utils, "wait_for_engine_startup", self.wait)

    def coordinator(self, parallel: object, enable_wave_coordination: bool = True, **_: object) -> SimpleNamespace:
        self.waves.append(enable_wave_coordination)
        return SimpleNamespace(
            proc=SimpleNamespace(pid=1), get_engine_socket_addresses=lambda: ("in", "out"),
            get_stats_publish_address=lambda: "stats",
        )  # fmt: skip

    def manager(self, **_: object) -> SimpleNamespace:
        self.targets.append(core.EngineCoreProc.run_engine_core)
        return SimpleNamespace(processes=[])

    def wait(
        self, handshake_socket: object, core_engines: object, parallel_config: object, coordinated_dp: bool,
        cache_config: object, launch: object,
    ) -> None:  # fmt: skip
        self.coordinated.append(coordinated_dp)


@pytest.mark.parametrize(("additional", "native"), [(ASYNC, False), *((each, True) for each in INACTIVE)])
def test_a_launch_coordinates_waves_only_natively(
    additional: dict[str, object], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(monkeypatch)
    before = vars(core.EngineCoreProc)["run_engine_core"]
    addresses = SimpleNamespace()
    with utils.launch_core_engines(engine_config(additional, dp2()), object, False, addresses) as launched:
        assert launched.coordinator is not None
        assert addresses.frontend_stats_publish_address == "stats", "load is balanced in any case"
    assert launch.waves == launch.coordinated == [native]
    [target] = launch.targets
    assert (target is start_engine) is not native
    assert vars(core.EngineCoreProc)["run_engine_core"] is before
    assert utils.DPCoordinator == launch.coordinator


def test_a_launch_that_fails_leaves_vllm_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(monkeypatch)
    before = vars(core.EngineCoreProc)["run_engine_core"]
    with (
        pytest.raises(KeyError),
        utils.launch_core_engines(engine_config(ASYNC, dp2()), object, False, SimpleNamespace()),
    ):
        raise KeyError
    assert vars(core.EngineCoreProc)["run_engine_core"] is before
    assert utils.DPCoordinator == launch.coordinator
    assert launch.coordinated == []


def test_the_target_of_an_async_engines_process_finds_the_way_into_a_spawned_child() -> None:
    pickled = pickle.dumps(start_engine)
    assert b"afd_compat.patches.async_dp_engine" in pickled
    assert pickle.loads(pickled) is start_engine  # noqa: S301


def test_a_forked_child_of_a_launch_runs_the_native_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in such a child: the launch is under way in its memory, and its process target is called."""
    ran: list[object] = []
    native = staticmethod(ran.append)
    monkeypatch.setattr(core.EngineCoreProc, "run_engine_core", async_dp_engine._TARGET)
    monkeypatch.setattr(async_dp_engine, "_replaced", [native])
    monkeypatch.setattr("afd_compat.install.install", lambda _declared: None)
    start_engine("engine")
    assert ran == ["engine"]
    assert vars(core.EngineCoreProc)["run_engine_core"] is native


@contextmanager
def client(additional: dict[str, object]) -> Iterator[tuple[core_client.DPLBAsyncMPClient, list[bytes], list[object]]]:
    """A client of two engines without sockets: (client, wake-ups sent, requests sent)."""
    made = object.__new__(core_client.DPLBAsyncMPClient)
    woken: list[bytes] = []
    sent: list[object] = []

    async def wake(message: bytes) -> None:
        woken.append(message)

    async def done() -> None:
        assert made.engines_running is (additional == ASYNC)

    def send(kind: EngineCoreRequestType, request: object, engine: object = None) -> object:
        sent.append((kind, engine))
        return done()

    made.vllm_config = SimpleNamespace(additional_config=additional)
    made.engines_running = False
    made.current_wave, made.client_index = 0, 0
    made.first_req_send_socket = SimpleNamespace(send=wake)
    made._ensure_stats_update_task = made._ensure_output_queue_task = lambda: None
    made._send_input = send
    made.get_core_engine_for_request = lambda request: b"\x01\x00"
    yield made, woken, sent


@pytest.mark.parametrize("additional", [ASYNC, *INACTIVE])
def test_a_request_wakes_the_other_ranks_only_natively(additional: dict[str, object]) -> None:
    with client(additional) as (made, woken, sent):
        request = SimpleNamespace()
        asyncio.run(made.add_request_async(request))
        assert sent == [(EngineCoreRequestType.ADD, b"\x01\x00")]
        assert made.engines_running is False
        native = 1 if Version(installed_version() or "0") < Version("0.33.dev0") else 0
        assert len(woken) == (0 if additional == ASYNC else native)


def test_requests_that_overlap_leave_no_rank_running() -> None:
    with client(ASYNC) as (made, woken, _sent):
        made._send_input = lambda *_: asyncio.sleep(0.01)

        async def three() -> None:
            await asyncio.gather(*(made.add_request_async(SimpleNamespace()) for _ in range(3)))

        asyncio.run(three())
        assert not made.dp_engines_running()
        assert woken == []


def metadata(additional: dict[str, object], parallel: ParallelConfig) -> object:
    """The DP metadata of a forward pass of 3 rows on one of two ranks."""
    config = VllmConfig(additional_config=additional)
    config.parallel_config = parallel
    with forward_context.set_forward_context(
        None, config, num_tokens=3, num_tokens_across_dp=torch.tensor([3, 5], dtype=torch.int32)
    ):
        context = forward_context.get_forward_context()
        assert context.no_compile_layers is config.compilation_config.static_forward_context
    assert config.parallel_config is parallel
    return context.dp_metadata


def test_an_async_forward_pass_makes_no_dp_metadata() -> None:
    parallel = dp2()
    assert metadata(ASYNC, parallel) is None
    assert parallel.is_moe_model is True
    assert parallel.data_parallel_size == 2


def test_an_async_forward_pass_asks_nobody_for_token_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(**_: object) -> object:
        raise AssertionError("the other ranks were asked")

    monkeypatch.setattr(forward_context, "coordinate_batch_across_dp", ask)
    config = VllmConfig(additional_config=ASYNC)
    config.parallel_config = dp2()
    with forward_context.set_forward_context(attn_metadata=None, vllm_config=config, num_tokens=3):
        assert forward_context.get_forward_context().dp_metadata is None
    config.additional_config = {}
    with pytest.raises(AssertionError, match="were asked"), forward_context.set_forward_context(None, config, 3):
        pass


@pytest.mark.parametrize("additional", INACTIVE)
def test_other_forward_passes_make_it(additional: dict[str, object]) -> None:
    made = metadata(additional, dp2())
    assert made is not None
    assert made.num_tokens_across_dp_cpu.tolist() == [3, 5]  # type: ignore[attr-defined]


def test_every_module_that_holds_set_forward_context_is_rebound_and_listed(patched: install.Installation) -> None:
    import vllm.v1.worker.gpu_model_runner  # noqa: F401 - imports many holders

    current = forward_context.set_forward_context
    listed = patched.holders(without_dp_metadata)
    assert "vllm.v1.worker.gpu_model_runner:set_forward_context" in listed
    native = current.__wrapped__  # type: ignore[attr-defined]
    assert not holders(native, Slot(forward_context, "set_forward_context"))
    assert len(listed) >= 3
