"""From a request to commands: what every server is told, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_compat.config import Config
from afd_workers.cli import main
from afd_workers.commands.request import OWN, make_request, normal
from afd_workers.launch import cores
from afd_workers.launch.free import free_ports
from afd_workers.launch.options import read
from afd_workers.launch.plan import Request, native, split
from afd_workers.launch.topology import Topology


def section(command: tuple[str, ...]) -> dict[str, object]:
    config: dict[str, dict[str, object]] = json.loads(command[command.index("--additional-config") + 1])
    return config["afd"]


DEVICES = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}


def request(topology: str = "1A1F", **changes: object) -> Request:
    values = {"options": ("--dtype", "bfloat16"), **changes}
    return Request("model", Topology.parse(topology), "127.0.0.1", 8000, **values)  # type: ignore[arg-type]


def test_roles_differ_in_role_rank_and_http_port_only() -> None:
    attention, *ffn = split(request("2A3F", section={"timeout_s": 5}), DEVICES, cpu=False)
    assert [server.name for server in (attention, *ffn)] == ["attention", "ffn 0", "ffn 1", "ffn 2"]
    common = {"host": "127.0.0.1", "timeout_s": 5, "num_attention_ranks": 2, "num_ffn_ranks": 3}
    port = section(attention.command)["port"]
    assert section(attention.command) == {**common, "port": port, "role": "attention"}
    for rank, server in enumerate(ffn):
        assert section(server.command) == {**common, "port": port, "role": "ffn", "rank": rank}
    assert attention.command[-4:-2] == ("--data-parallel-size", "2")
    assert all("--data-parallel-size" not in server.command for server in ffn)
    assert all(server.command[5:] and "bfloat16" in server.command for server in (attention, *ffn))
    assert len({server.health for server in (attention, *ffn)}) == 4
    assert attention.health == "http://127.0.0.1:8000/health"


@pytest.mark.parametrize("spelling", [("-tp", "2"), ("-tp=2",), ("--tensor-parallel-size", "2")])
def test_tensor_parallel_processes_are_attention_ranks_and_together_one_ffn_rank(spelling: tuple[str, ...]) -> None:
    attention, *ffn = split(request("3A2F", options=spelling), {}, cpu=True)
    assert [server.name for server in (attention, *ffn)] == ["attention", "ffn 0", "ffn 1"]
    for server in (attention, *ffn):
        assert (section(server.command)["num_attention_ranks"], section(server.command)["num_ffn_ranks"]) == (6, 2)
    bound = [server.env["VLLM_CPU_OMP_THREADS_BIND"].split("|") for server in (attention, *ffn)]
    assert [len(lists) for lists in bound] == [6, 2, 2]
    assert [each for lists in bound for each in lists] == [",".join(map(str, block)) for block in cores.blocks(10)]
    assert len(native(request(options=spelling), {}, cpu=True).env["VLLM_CPU_OMP_THREADS_BIND"].split("|")) == 2


def test_switched_off_options_are_no_options() -> None:
    assert read(("--no-enable-lora", "--dtype", "bfloat16", "-O0", "--no-enable-eplb")) == read(())


def test_native_gets_no_section() -> None:
    assert "--additional-config" not in native(request(), {}, cpu=True).command


def test_other_additional_config_goes_to_every_server() -> None:
    for server in split(request(additional={"mine": 1}), DEVICES, cpu=False):
        assert json.loads(server.command[server.command.index("--additional-config") + 1])["mine"] == 1


def test_cpu_servers_get_their_own_processors_unless_the_user_bound_them() -> None:
    bound = [server.env["VLLM_CPU_OMP_THREADS_BIND"] for server in split(request(), {}, cpu=True)]
    expected = [",".join(map(str, block)) for block in cores.blocks(2)]
    assert bound == expected
    kept = split(request(), {"VLLM_CPU_OMP_THREADS_BIND": "7"}, cpu=True)
    assert [server.env["VLLM_CPU_OMP_THREADS_BIND"] for server in kept] == ["7", "7"]


@pytest.mark.parametrize(
    ("options", "env", "sized"),
    [
        ((), {}, True),
        (("--kv-cache-memory-bytes", "1G"), {}, False),
        (("--gpu_memory_utilization=0.3",), {}, False),
        ((), {"VLLM_CPU_KVCACHE_SPACE": "2"}, False),
    ],
)
def test_cpu_attention_gets_a_kv_cache_size_unless_the_user_chose(
    options: tuple[str, ...], env: dict[str, str], sized: bool
) -> None:
    attention, ffn = split(request(options=options), env, cpu=True)
    assert (attention.command.count("--kv-cache-memory-bytes") == 1 + (len(options) == 2)) == sized
    assert "--kv-cache-memory-bytes" not in ffn.command or options


def test_tls_servers_are_probed_over_tls() -> None:
    assert split(request(options=("--ssl-certfile", "x")), DEVICES, cpu=False)[1].health.startswith(
        "https://127.0.0.1:"
    )


@given(st.integers(1, 64))
def test_processor_blocks_share_all_processors_out_evenly(ranks: int) -> None:
    blocks = cores.blocks(ranks)
    assert len(blocks) == ranks
    sizes = [len(block) for block in blocks]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.integers(1, 9999), st.integers(1, 9999))
def test_topologies_round_trip(attention: int, ffn: int) -> None:
    assert Topology.parse(f"{attention}A{ffn}F") == Topology(attention, ffn)
    assert str(Topology(attention, ffn)) == f"{attention}A{ffn}F"


@given(st.text(max_size=8))
def test_other_topologies_get_one_sentence(text: str) -> None:
    if re.fullmatch(r"[1-9]\d*A[1-9]\d*F", text, re.IGNORECASE | re.ASCII):
        return
    with pytest.raises(ValueError, match=r"^Expected a topology such as 1A1F or 2A1F, found "):
        Topology.parse(text)


def options(**changes: object) -> argparse.Namespace:
    values = {
        "model": "m",
        "topology": "1A1F",
        "host": "127.0.0.1",
        "port": 0,
        "additional_config": "{}",
        "start_timeout": 9.0,
    }
    return argparse.Namespace(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "rest", "sentence"),
    [
        ({"topology": "0A1F"}, (), r"Expected a topology such as 1A1F or 2A1F, found '0A1F'"),
        ({"additional_config": "{"}, (), r"Expected a JSON object for --additional-config, found '\{'"),
        ({"additional_config": "[1]"}, (), r"Expected a JSON object for --additional-config, found '\[1\]'"),
        ({"additional_config": '{"afd": 3}'}, (), r'Expected an object under "afd" in --additional-config, found 3'),
        ({"additional_config": '{"afd": {"role": "ffn"}}'}, (), r'Expected no role under "afd", found one'),
        ({"additional_config": '{"afd": {"timeout": 3}}'}, (), r"timeout_s"),
        (
            {"additional_config": "[" * 50000},
            (),
            r"Expected a JSON object for --additional-config, found '\[\[.{70,90}'",
        ),
        ({"additional_config": '{"afd": {"rank": ' + "9" * 5000 + "}}"}, (), r"Expected a JSON object|no rank"),
        ({"additional_config": '{"afd": {"connector": "nope"}}'}, (), r"connector 'nope' is not known"),
        ({"additional_config": '{"afd": {"connector": "nccl-p2p"}}'}, (), r"needs device cuda"),
        ({"additional_config": '{"afd": {"port": 65535}}', "topology": "1A2F"}, (), r"one port per FFN rank"),
        ({"topology": "1A9999F"}, (), r"Expected at most 64 ranks on one host, found --topology 1A9999F"),
        ({"model": " "}, (), r"Expected a model name or a checkpoint folder, found an empty name"),
        ({"model": "/missing/model"}, (), r"folder with config.json at /missing/model, found no such folder"),
        ({"model": __file__}, (), r"folder with config.json at .*test_plan.py, found a file"),
        ({"model": "/"}, (), r"folder with config.json at /, found a folder without it"),
        ({"port": 70000}, (), r"Expected --port from 1 to 65535, found 70000"),
        ({"port": 8000, "host": "999.1.1.1"}, (), r"found 999\.1\.1\.1:8000 taken or not an address of this host"),
        ({}, ("--model", "other"), r"hand on, found --model: name the model once"),
        ({}, ("--ud", "/tmp/x"), r"hand on, found --ud: use --host and --port"),
        ({}, ("--uds=/tmp/x",), r"hand on, found --uds=/tmp/x: use --host and --port"),
        ({}, ("--config", "/tmp/x.yaml"), r"found --config: write the options of that file on the command line"),
        ({"model": "~nouser/x"}, (), r"or a checkpoint folder, found '~nouser/x' \(.*home directory\): correct it"),
        ({"model": "m" * 300}, (), r"or a checkpoint folder, found 'm{60}\.\.\.' \(File name too long\): correct it"),
        ({}, ("--additional-config.foo=1",), r"one JSON object after --additional-config, found .*\.foo: write its k"),
        ({}, ("--additional_config.afd.role=ffn",), r"JSON object .*, found --additional-config\.afd\.role: write"),
        ({}, ("--additional-config.foo+", "1"), r"Expected one JSON object after --additional-config, found "),
        ({}, ("--additional-conf", "{}"), r"JSON object after --additional-config, found --additional-conf: write"),
        ({}, ("--dtype", "x", "--", "y"), r"hand on, found --: leave it out, what follows would be no options"),
        ({"additional_config": '{"afd": {"connector": "loopback"}}'}, (), r"processes, found 'loopback', which joins"),
        (
            {"additional_config": '{"afd": {"secret": "hu\\u0000sh"}}'},
            (),
            r"secret must .* NUL .*, but it is a str \(not",
        ),
        (
            {"additional_config": '{"afd": {"secret": "hu\\ud800"}}'},
            (),
            r"secret must .*, but it is a str \(not shown\)",
        ),
        ({}, ("--load-format", "Tensorizer"), r"cannot take its part of what load_format=Tensorizer loads"),
        (
            {"additional_config": '{"afd": {"dense_layers_on_attention": true}}'},
            ("--enable-lora",),
            r"needs enable_lora=False, found True: leave LoRA out",
        ),
        ({}, ("-dp2",), r"hand on, found -dp2: write --topology"),
        ({}, ("other-model",), r"Expected options after the model, found 'other-model'"),
        ({}, ("--data-parallel-size=2",), r"hand on, found --data-parallel-size=2: write --topology"),
        ({}, ("--data-parallel-rank", "1"), r"hand on, found --data-parallel-rank: write --topology"),
        ({}, ("-tp", "two"), r"Expected options that vLLM takes, found .*-tp: invalid int value: 'two'"),
        ({}, ("-tp",), r"Expected options that vLLM takes, found .*-tp: expected one argument"),
        ({}, ("-tp", "0"), r"Expected --tensor-parallel-size of at least 1, found 0"),
        ({"topology": "16A1F"}, ("-tp=4",), r"found --topology 16A1F with tensor parallel size 4, 68 in all"),
        ({}, ("-pp", "2"), r"^AFD's attention role needs pipeline_parallel_size=1, found 2: set it to 1\.$"),
        ({}, ("-dcp=2",), r"needs decode_context_parallel_size=1, found 2: set it to 1"),
        ({}, ("--enable-sleep-mode",), r"needs enable_sleep_mode=False, found True: leave it out, stop both servers"),
        ({}, ("--weight-transfer-config.backend=x",), r"needs weight_transfer_config=None, found backend=x: leave it"),
        ({}, ("-ep",), r"needs enable_expert_parallel=False, found True: leave it out, each FFN rank holds all"),
        (
            {"additional_config": '{"afd": {"compute_gate_on_attention": "yes"}}'},
            (),
            r"compute_gate_on_attention must be",
        ),
    ],
)
def test_bad_requests_get_one_sentence(
    changes: dict[str, object], rest: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    with pytest.raises(ValueError, match=sentence) as caught:
        make_request(options(**changes), rest)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("named", ["", " ", ",", "0,", "-1", "0,-1", "abc", "0;1", "0 1", "00", "GPU-"])
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_devices_that_are_none_are_refused(
    role: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: False)
    assert main(["serve", "m", "--port", str(free_ports(1)[0]), f"--{role}-devices={named}"]) == 2
    assert f"or GPU-1a2b after --{role}-devices, found {named!r}: name them, or leave" in capsys.readouterr().err
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    assert main(["serve", "m", "--port", str(free_ports(1)[0]), f"--{role}-devices={named}"]) == 2
    assert "Expected no devices where vLLM is a CPU build, found some" in capsys.readouterr().err


def test_a_model_that_is_not_carried_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DeepseekV4ForCausalLM"]}))
    with pytest.raises(ValueError, match=r"^AFD does not carry DeepseekV4ForCausalLM \(.*token id.*; serve it without"):
        make_request(options(model=str(tmp_path)), ())
    overrides = ("--hf_overrides", '{"architectures": ["DeepseekV3ForCausalLM"]}')
    assert make_request(options(model=str(tmp_path), port=free_ports(1)[0]), overrides).options == overrides


@pytest.mark.parametrize(("text", "found"), [(b"{", "none"), (b"\xff", "none"), (b"[1]", "a list"), (b"[" * 9999, "n")])
def test_a_config_that_is_no_object_is_refused_before_anything_starts(
    text: bytes, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    (tmp_path / "config.json").write_bytes(text)
    for rest in ((), ("--hf-overrides", "{}")):
        with pytest.raises(
            ValueError, match=rf"^Expected a JSON object in .*config.json, found {found}.*: put [^\n]*$"
        ):
            make_request(options(model=str(tmp_path)), rest)


def test_an_unknown_simulated_routing_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    monkeypatch.setattr("afd_workers.routing.written", lambda: ("uniform_random",))
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "unifrom")
    assert main(["serve", "m"]) == 2
    assert "to name one of balanced, uniform_random, found 'unifrom': " in capsys.readouterr().err


@pytest.mark.parametrize(("spelling", "key", "value"), [("afd_port", "port", 4321), ("afd_host", "host", "localhost")])
def test_older_spellings_stand_for_the_launchers_own_keys(
    spelling: str, key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    text = json.dumps({"afd": {spelling: value}})
    made = make_request(options(additional_config=text, port=free_ports(1)[0]), ())
    for server in split(made, {}, cpu=True):
        assert section(server.command)[key] == value
        assert Config.parse(section(server.command), {})
    both = json.dumps({"afd": {spelling: value, key: value}})
    with pytest.raises(ValueError, match=rf"must give {key} once"):
        make_request(options(additional_config=both, port=free_ports(1)[0]), ())


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def documented(*command: str) -> set[str]:
    """The options that a command's help names."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        main([*command, "--help"])
    usage = said.getvalue().split("\n\n")[0]
    return {*OPTION.findall(usage), "--help"}


def test_the_options_of_serve_are_known_to_the_check() -> None:
    assert documented("serve") == set(OWN)


@pytest.mark.parametrize(
    ("given", "short", "own"),
    [
        (["m", "--topo", "2A1F"], "--topo", "--topology"), (["--topo=2A1F", "m"], "--topo", "--topology"),
        (["m", "--p", "1"], "--p", "--port"), (["m", "--attention", "0"], "--attention", "--attention-devices"),
        (["m", "--ffn_dev", "0"], "--ffn-dev", "--ffn-devices"), (["m", "--hel"], "--hel", "--help"),
    ],
)  # fmt: skip
def test_an_abbreviated_option_of_serve_is_refused_at_once(
    given: list[str], short: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *given]) == 2
    assert capsys.readouterr().err == (
        f"afd serve: Expected options in full, found {short}, which may be short for {own}: write it out.\n"
    )


@pytest.mark.parametrize(
    "command", [("demo",), ("models",), ("models", "new"), ("models", "all"), ("size",), ("plan",), ("patches",),
                ("doctor",)]
)  # fmt: skip
def test_no_command_takes_abbreviations(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    known = documented(*command)
    for name in known:
        short = name[:-1]
        with pytest.raises(SystemExit) as ended:
            main([*command, short, *(["m"] if command[-1] in ("new", "size", "plan") else [])])
        assert ended.value.code == 2
        assert short in capsys.readouterr().err


@pytest.mark.parametrize("given", [["m", "--", "--port", "1"], ["--", "m"], ["m", "--dtype", "x", "--"]])
def test_a_bare_double_dash_is_refused_wherever_it_is(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *given]) == 2
    assert "afd serve: Expected options that afd serve can hand on, found --: leave it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["models", "patches", "doctor", "size"])
def test_a_reader_that_has_enough_ends_a_command_quietly(command: str, tmp_path: Path) -> None:
    config = Path(str(files("afd_workers"))) / "demo" / "model"
    arguments = [command, str(config)] if command == "size" else [command]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "afd_workers.cli", *arguments],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, stdout=writing, stderr=subprocess.PIPE,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_taken_port_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "m", "--port", str(taken.getsockname()[1])]) == 2
    assert "Expected a free port for the API" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--topology", "2A1F", "--enable-dbo"), "needs data_parallel_size=1, found 2: "),
        (("-tp", "2", "--enable-dbo"), "needs tensor_parallel_size=1, found 2: "),
        (("-tp", "2", "--topology", "1A2F"), "Expected one FFN rank for the 2 tensor-parallel processes of an "),
        (("--ubatch-size", "4"), "needs ubatch_size=0, found 4: "),
    ],
)
def test_what_servers_on_devices_would_refuse_is_refused_at_once(
    options: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: False)
    assert main(["serve", "m", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_roles_on_devices_tell_nccl_that_they_keep_an_order_unless_the_user_says_otherwise() -> None:
    knob = "NCCL_GRAPH_MIXING_SUPPORT"
    assert [server.env.get(knob) for server in split(request(), DEVICES, cpu=False)] == ["0", "0"]
    assert [server.env.get(knob) for server in split(request(), {**DEVICES, knob: "1"}, cpu=False)] == ["1", "1"]
    assert [server.env.get(knob) for server in split(request(), {}, cpu=True)] == [None, None]
    assert knob not in native(request(), {}, cpu=False).env


def test_a_secret_travels_in_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afd_workers.commands.request.on_cpu", lambda: True)
    wanted = options(additional_config='{"afd": {"secret": "hush", "timeout_s": 5}}', port=free_ports(1)[0])
    made = make_request(wanted, ())
    for server in split(made, {}, cpu=True):
        assert "hush" not in " ".join(server.command)
        assert server.env["AFD_SECRET"] == "hush"
    assert "hush" not in repr(made)


def test_both_spellings_of_an_option_are_one() -> None:
    assert normal("--ssl_certfile=a_b") == "--ssl-certfile=a_b"
    assert normal("--hf_overrides.rope_theta") == "--hf-overrides.rope_theta"
    assert normal("my_model") == "my_model"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
@pytest.mark.parametrize("command", [["serve", "m"], ["demo"]])
def test_a_start_timeout_must_be_a_time(command: list[str], seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--start-timeout", seconds])
    assert f"expected a number of seconds above 0, found '{seconds}'" in capsys.readouterr().err


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "vllm.whl"
    wheel.write_text("no zip")
    assert main(["patches", "--against", str(wheel)]) == 2
    assert f"{wheel} is no zip archive; pass a wheel or a folder" in capsys.readouterr().err


def test_unknown_arguments_of_other_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["patches", "--nonsense"])
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err
