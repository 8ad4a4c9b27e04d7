"""A logger whose records carry where they come from."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds its fields to every record, beside the caller's own."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
