"""The properties of the agent's core look as hard as those of the engine's core."""

from __future__ import annotations

from tests.core import conftest as _profiles

__all__ = ["_profiles"]
