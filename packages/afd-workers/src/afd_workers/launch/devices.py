"""Which devices each server of this host gets: by default its own, since each counts on all memory of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from afd_connectors.layout import Layout

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Where the driver shows the devices that this host, or this container, has.
NODES = Path("/dev")


def deal(
    attention: int, ffn: Sequence[int], env: Mapping[str, str], named: Mapping[str, Sequence[str]], nodes: Path = NODES
) -> tuple[str, ...]:
    """A value of CUDA_VISIBLE_DEVICES for attention's server and for each FFN rank's.

    attention, ffn: processes of each server, which all need a device of their own. named: role -> devices that the
    user chose for it, which the other role may have too. Where none are chosen, they are those of `env`, or of this
    host, that the other role does not have. ValueError when there are fewer; where nothing shows how many there are,
    CUDA itself will say.
    """
    needed = {"attention": attention, "ffn": sum(ffn)}
    for role, chosen in named.items():
        if len(chosen) != needed[role]:
            raise ValueError(
                f"Expected {needed[role]} devices after --{role}-devices, found {','.join(chosen)}: name one for each "
                f"process of the {role} role."
            )
        count = _nodes(nodes)
        beyond = [each for each in chosen if count and each.isdecimal() and int(each) >= count]
        if beyond:
            raise ValueError(
                f"Expected devices from 0 to {count - 1} of this host after --{role}-devices, found {beyond[0]}: "
                "correct it."
            )
    found, where = _there(sum(needed.values()), env, nodes)
    free = [each for each in found if not any(each in chosen for chosen in named.values())]
    wanted = sum(count for role, count in needed.items() if role not in named)
    if len(free) < wanted:
        raise ValueError(
            f"Expected a device for each of {wanted} processes, found {len(free)} {where}: choose a smaller "
            "--topology, name devices that roles share (--attention-devices, --ffn-devices), or start the roles on "
            "several hosts by hand."
        )
    places = dict(named)
    for role, count in needed.items():
        if role not in places:
            places[role], free = free[:count], free[count:]
    shares, rest = [places["attention"]], list(places["ffn"])
    for count in ffn:
        shares.append(rest[:count])
        rest = rest[count:]
    for share in shares:
        if len(set(share)) < len(share):
            raise ValueError(
                f"Expected different devices for the processes of one server, found {','.join(share)}: NCCL does not "
                "join two processes on one device."
            )
    return tuple(",".join(share) for share in shares)


def check_apart(shares: Sequence[str], tensor: int) -> None:
    """ValueError where an attention rank that exchanges rows has the device of an FFN rank that it exchanges them with.

    shares: as `deal` gives them; tensor: processes of an attention replica and of an FFN rank, of which the first ones
    exchange. For transports that NCCL carries.
    """
    attention, *ffn = [share.split(",") for share in shares]
    for rank in range(0, len(attention), tensor):
        for peer in Layout("attention", rank, len(attention), len(ffn)).peers:
            if attention[rank] == ffn[peer][0]:
                raise ValueError(
                    f"Expected different devices for attention rank {rank} and FFN rank {peer}, found "
                    f"{attention[rank]} for both: NCCL does not join two processes on one device; take the connector "
                    "'nvlink' or other devices."
                )


def _there(needed: int, env: Mapping[str, str], nodes: Path) -> tuple[list[str], str]:
    named = env.get(VISIBLE)
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()], f"in {VISIBLE}={named}"
    return list(map(str, range(_nodes(nodes) or needed))), "on this host"


def _nodes(nodes: Path) -> int:
    """How many devices the driver shows; 0 where it shows them elsewhere."""
    return sum(node.name.removeprefix("nvidia").isdigit() for node in nodes.glob("nvidia*"))
