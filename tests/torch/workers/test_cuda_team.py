"""What the processes of an FFN rank on devices tell one another: all capture, replay and drop the same graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch

from afd_workers import cuda_team
from afd_workers.cuda_team import DeviceFollower, DeviceLead, Together


class Device:
    """Stands for a recorder: a graph is what was done while it was recorded. did: what the device did, in order."""

    def __init__(self) -> None:
        self.did: list[object] = []
        self.pools = 0

    def __call__(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        before, self.did = self.did, []
        enqueue()
        recorded, self.did = self.did, before
        return lambda: self.did.extend(recorded)

    def new_pool(self) -> None:
        self.pools += 1


class Team:
    """Both ends of one rank, whose words wait in a queue and whose rows are copied at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: deque[tuple[int, int, int, int]] = deque()
        self.rows: deque[torch.Tensor] = deque()
        self.devices = Device(), Device()
        monkeypatch.setattr(DeviceLead, "_tell", lambda _, *word: self.words.append((*word, 0, 0, 0)[:4]))
        monkeypatch.setattr(DeviceLead, "_hand_out", lambda _, rows: self.rows.append(rows.clone()))
        monkeypatch.setattr(DeviceFollower, "_receive", lambda *_: self.rows.popleft())
        monkeypatch.setattr(cuda_team.torch.cuda, "current_stream", lambda: self)
        monkeypatch.setattr("afd_workers.team.distributed.broadcast", self._head)
        self.lead = DeviceLead(None, 0, self._computing(0), None)  # type: ignore[arg-type]
        self.follower = DeviceFollower(None, 0, self._computing(1), None, 2, torch.float32)  # type: ignore[arg-type]
        self.together = Together(self.lead)
        self.together._recorder, self.follower._recorder = self.devices  # type: ignore[assignment]

    def _computing(self, place: int) -> Callable[..., torch.Tensor]:
        def compute(layer: int, hidden: torch.Tensor, router: torch.Tensor | None = None) -> torch.Tensor:
            logits = None if router is None else router.tolist()
            self.devices[place].did.append((layer, hidden.tolist(), logits))
            return hidden

        return compute

    def _head(self, head: torch.Tensor, *_: object, **__: object) -> None:
        head.copy_(torch.tensor(self.words.popleft()))

    def synchronize(self) -> None:
        """Of the stream: it is past everything."""

    def follow(self) -> None:
        """The follower takes in all that was said."""
        while self.words:
            assert self.follower.serve_one()

    @property
    def alike(self) -> bool:
        self.follow()
        return self.devices[0].did == self.devices[1].did and bool(self.devices[0].did)


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Team:
    return Team(monkeypatch)


def forward(team: Team, rows: int) -> None:
    for layer in (0, 2):
        router = None if layer == 0 else torch.ones(rows, 3)
        team.lead(layer, torch.full((rows, 2), float(layer)), router)


def test_plain_steps_are_computed_by_all(team: Team) -> None:
    forward(team, 3)
    assert team.alike
    assert [layer for layer, *_ in team.devices[1].did] == [0, 2]  # type: ignore[misc]


def test_graphs_are_captured_replayed_and_dropped_together(team: Team) -> None:
    small = team.together(lambda: forward(team, 1))
    large = team.together(lambda: forward(team, 4))
    team.follow()
    assert [device.did for device in team.devices] == [[], []], "a capture computes nothing"
    large()
    small()
    large()
    assert team.alike
    team.together.drop(small)
    team.follow()
    large()
    assert team.alike
    assert team.devices[1].pools == 0
    team.together.drop(large)
    team.together.new_pool()
    team.follow()
    assert [device.pools for device in team.devices] == [1, 1]
    again = team.together(lambda: forward(team, 2))
    again()
    assert team.alike


def test_an_unknown_word_is_refused(team: Team) -> None:
    team.words.append((-9, 0, 0, 0))
    with pytest.raises(RuntimeError, match="Expected a word of this version from the first process, found -9"):
        team.follower.serve_one()
