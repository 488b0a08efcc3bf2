"""The plain form: two vLLM servers that differ in ``role``, in any order, and what they say when they do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from afd_workers.demo.client import Client
from afd_workers.launch.plan import Server
from tests.support.checkpoints import Checkpoint
from tests.support.forks import Fork
from tests.support.servers import base, forked, plain, roles, started, status, wait, wait_ready

pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute or two
TOKENS = 32
PROMPTS = [f"Prompt number {n} " * n for n in range(1, 6)]


@dataclass(slots=True)
class Logs:
    """What each server wrote."""

    attention: list[str]
    ffn: list[str]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Both roles up as a user starts them, with the logs of two attention servers that were refused before."""

    attention: Server
    native: Server
    logs: Logs
    refused: tuple[Fork, Fork]
    stack: ExitStack


def said(lines: list[str], pattern: str) -> bool:
    """Whether a line matches."""
    return any(re.search(pattern, line) for line in tuple(lines))


@pytest.fixture(scope="module")
def deployment(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    model, logs, folder = checkpoint("deepseek-v2"), Logs([], []), tmp_path_factory.mktemp("servers")
    attention, ffn = roles(model)
    stranger = checkpoint("deepseek-v2", seed=1)
    command = tuple(str(stranger) if word == str(model) else word for word in attention.command)
    other = replace(attention, name="other", command=command)
    lonely = replace(roles(model, join_timeout_s=3)[0], name="lonely")
    native = plain(model)
    with ExitStack() as stack:
        wrong, alone, whole = (stack.enter_context(forked(server, folder)) for server in (other, lonely, native))
        wait("an attention server without an FFN server", lambda: alone.poll() is not None)
        wait("attention's word on whom it waits for", lambda: said(wrong.lines(), "waits for FFN rank 0"))
        stack.enter_context(started(ffn, logs.ffn))
        right = stack.enter_context(started(attention, logs.attention))
        wait("the refusal of a different model", lambda: wrong.poll() is not None)
        wait("attention", lambda: right.is_ready() or right.exit_code() is not None)
        assert right.exit_code() is None, "\n".join(logs.attention[-30:])
        wait_ready(native, whole)
        yield Deployment(attention, native, logs, (wrong, alone), stack)


def test_attention_that_starts_first_says_whom_it_waits_for(deployment: Deployment) -> None:
    assert said(
        deployment.refused[0].lines(), r"attention rank 0 waits for FFN rank 0 at 127\.0\.0\.1:\d+ \(\d+ s of 120 s\)"
    )


def test_attention_without_an_ffn_ends_with_one_sentence(deployment: Deployment) -> None:
    lonely = deployment.refused[1]
    assert lonely.poll() not in (0, None)
    assert said(lonely.lines(), r"DeadlineExceeded: .*FFN rank 0.*127\.0\.0\.1:\d+.*3 s")


def test_mismatched_models_are_refused_on_both_sides_with_both_values(deployment: Deployment) -> None:
    other = deployment.refused[0]
    assert other.poll() not in (0, None)
    sentence = r"attention rank 0 and FFN rank 0 disagree on model_digest: attention has '(\w{16})', FFN has '(\w{16})'"
    told = [
        {match.groups() for line in lines if (match := re.search(sentence, line))}
        for lines in (other.lines(), deployment.logs.ffn)
    ]
    assert told[0] == told[1]
    [(attention, ffn)] = told[0]
    assert attention != ffn


def test_the_right_model_is_served_afterwards_with_the_native_tokens(deployment: Deployment) -> None:
    split, native = (Client(base(server), "toy") for server in (deployment.attention, deployment.native))
    for prompt in PROMPTS:
        assert split.complete(prompt, TOKENS).tokens == native.complete(prompt, TOKENS).tokens


def test_both_roles_stop_on_sigterm(deployment: Deployment) -> None:
    deployment.stack.close()
    assert status(deployment.attention.health) == 0
