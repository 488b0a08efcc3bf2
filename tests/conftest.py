"""What every suite shares: toy checkpoints, and hypothesis without deadlines, since test machines stall."""

from __future__ import annotations

from hypothesis import settings

from tests.support.checkpoints import checkpoint

__all__ = ["checkpoint"]

settings.register_profile("afd", deadline=None)
settings.load_profile("afd")
