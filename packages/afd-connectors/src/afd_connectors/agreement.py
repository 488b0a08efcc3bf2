"""Whether two sides fit together, in one sentence with both values when they do not."""

from __future__ import annotations

import hmac

from afd_connectors.errors import quoted
from afd_connectors.facts import Facts

MOST = 80  # characters of a value: a peer chooses it
_BEFORE = 20


def disagreement(attention: Facts, ffn: Facts, attention_rank: int, ffn_rank: int) -> str | None:
    """The sentence about the first fact that differs, the same on both sides; None when all agree."""
    found = attention.difference(ffn)
    if found is None:
        return None
    name, *values = found
    ours, theirs = _side_by_side(*values)
    return (
        f"attention rank {attention_rank} and FFN rank {ffn_rank} disagree on {name}: "
        f"attention has {ours}, FFN has {theirs}; "
        f"start both roles with the same model, settings and versions."
    )


def _side_by_side(ours: object, theirs: object) -> tuple[str, str]:
    """Both values as text; of long ones the part where they begin to differ."""
    first, second = quoted(ours, MOST), quoted(theirs, MOST)
    if first != second:
        return first, second
    whole = repr(ours), repr(theirs)
    alike = next((at for at, (a, b) in enumerate(zip(*whole, strict=False)) if a != b), min(map(len, whole)))
    start = max(0, alike - _BEFORE)
    first, second = (f"...{text[start : start + MOST - 6]}" for text in whole)
    return first, second


def one_sided_secret(attention_has: bool, ffn_has: bool, attention_rank: int, ffn_rank: int) -> str | None:
    """The sentence about a secret that only one side was given; None when both or neither have one."""
    if attention_has == ffn_has:
        return None
    attention, ffn = f"attention rank {attention_rank}", f"FFN rank {ffn_rank}"
    holder, other = (attention, ffn) if attention_has else (ffn, attention)
    return f"a secret is set on {holder} but not on {other}; set the same secret on both or on neither."


def wrong_secret(attention_rank: int, ffn_rank: int) -> str:
    """The sentence about two secrets that differ; it shows neither."""
    return (
        f"attention rank {attention_rank} and FFN rank {ffn_rank} were given different secrets; "
        "set the same secret on both."
    )


def refusal(
    ffn: Facts,
    attention: Facts,
    ffn_secret: str | None,
    attention_secret: str | None,
    ffn_rank: int,
    rank: int,
) -> str | None:
    """Why an FFN rank refuses an attention rank of the same process, where both secrets can be seen."""
    one = one_sided_secret(attention_secret is not None, ffn_secret is not None, rank, ffn_rank)
    if one is not None:
        return one
    if not hmac.compare_digest((ffn_secret or "").encode(), (attention_secret or "").encode()):
        return wrong_secret(rank, ffn_rank)
    return disagreement(attention, ffn, rank, ffn_rank)
