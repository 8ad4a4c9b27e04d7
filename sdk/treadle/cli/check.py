"""One line of what ``treadle doctor`` says."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """What was seen, and for what is not well the remedy."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    remedy: str = ""
