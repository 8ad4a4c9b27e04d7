"""The properties of the plan look as hard as those of the engine's core."""

from __future__ import annotations

from tests.core import conftest as _profiles

__all__ = ["_profiles"]
