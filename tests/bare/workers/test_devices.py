"""Each server of a host gets a device of its own, or none is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd_workers.launch.devices import VISIBLE, check_apart, deal
from afd_workers.launch.plan import Request, split
from afd_workers.launch.topology import Topology


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """/dev of a host with three devices."""
    for name in ("nvidia0", "nvidia1", "nvidia5", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_devices_of_the_host_are_dealt_in_order(host: Path) -> None:
    assert deal(1, [1], {}, {}, host) == ("0", "1")
    assert deal(1, [1, 1], {}, {}, host) == ("0", "1", "2")
    assert deal(2, [1], {}, {}, host) == ("0,1", "2")
    assert deal(1, [2], {}, {}, host) == ("0", "1,2")


def test_devices_that_the_user_names_come_before_those_of_the_host(host: Path) -> None:
    assert deal(1, [1], {VISIBLE: "3, GPU-1a,7"}, {}, host) == ("3", "GPU-1a")


def test_roles_share_devices_that_are_named_for_both(host: Path) -> None:
    assert deal(2, [1], {}, {"attention": ("0", "1"), "ffn": ("1",)}, host) == ("0,1", "1")
    assert deal(1, [1, 1], {}, {"ffn": ("1", "0")}, host) == ("2", "1", "0")
    assert deal(1, [2], {}, {"attention": ("1",)}, host) == ("1", "0,2")


def test_ranks_that_nccl_joins_have_different_devices() -> None:
    check_apart(("0,1", "1"), 2)  # the second process of a tensor-parallel replica exchanges nothing
    check_apart(("0", "1,0"), 1)
    check_apart(("0,1", "1", "0"), 1)
    with pytest.raises(ValueError, match=r"^Expected different devices for attention rank 1 and FFN rank 1, found 1"):
        check_apart(("2,1", "0", "1"), 1)
    shared = {"attention": ("0",), "ffn": ("0",)}
    request = Request("m", Topology(1, 1), "127.0.0.1", 8000, section={"connector": "nccl-p2p"}, devices=shared)
    with pytest.raises(ValueError, match=r"attention rank 0 and FFN rank 0, found 0 for both: .*connector 'nvlink'"):
        split(request, {}, cpu=False)


def test_as_many_devices_are_named_as_a_role_has_processes(host: Path) -> None:
    with pytest.raises(ValueError, match=r"^Expected 2 devices after --attention-devices, found 0: name one for each"):
        deal(2, [1], {}, {"attention": ("0",)}, host)
    with pytest.raises(ValueError, match=r"^Expected different devices for the processes of one server, found 1,1: "):
        deal(1, [2], {}, {"ffn": ("1", "1")}, host)


def test_devices_that_the_host_does_not_have_are_refused(host: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for env in ({}, {VISIBLE: "0,1"}):
        with pytest.raises(ValueError, match=r"^Expected devices from 0 to 2 of .* after --ffn-devices, found 3: "):
            deal(1, [1], env, {"ffn": ("3",)}, host)
    assert deal(1, [1], {}, {"ffn": ("GPU-1a",)}, host) == ("0", "GPU-1a")
    assert deal(1, [1], {}, {"attention": ("6",), "ffn": ("7",)}, tmp_path_factory.mktemp("dev")) == ("6", "7")


@pytest.mark.parametrize(
    ("env", "found"),
    [({}, "found 3 on this host"), ({VISIBLE: "1"}, f"found 1 in {VISIBLE}=1"), ({VISIBLE: ""}, "found 0")],
)
def test_too_few_devices_are_one_sentence(host: Path, env: dict[str, str], found: str) -> None:
    with pytest.raises(
        ValueError, match=r"^Expected a device for each of 4 processes, found \d .*--topology.*\.$"
    ) as caught:
        deal(2, [1, 1], env, {}, host)
    assert found in str(caught.value)


def test_where_nothing_shows_how_many_there_are_cuda_will_say(tmp_path: Path) -> None:
    assert deal(1, [1, 1], {}, {}, tmp_path) == ("0", "1", "2")


def test_roles_never_share_a_device() -> None:
    servers = split(Request("model", Topology.parse("1A2F"), "127.0.0.1", 8000), {VISIBLE: "4,5,6,7"}, cpu=False)
    assert [server.env[VISIBLE] for server in servers] == ["4", "5", "6"]
    assert all(
        VISIBLE not in server.env
        for server in split(Request("model", Topology.parse("1A2F"), "127.0.0.1", 8000), {}, cpu=True)
    )
