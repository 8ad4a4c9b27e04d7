"""What calls of a model cost: a table that the user gives. There are no built-in prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from treadle.sdk.errors import UserError
from treadle.worker.agent.core.conversation import Usage


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a model, in USD per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """``None``: as ``input``, so that a cost is rather counted too high than too low."""
    cache_write: float | None = None
    """``None``: as ``input``."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value: float | None = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UserError(
                    f"the price {field}={value!r} is not a sum of money: it has to be a finite "
                    "number of USD per million tokens, 0 or more. Correct it in the price table."
                )


class PriceTable:
    """Prices by the start of a model's name; the longest start that fits decides."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = sorted(prices.items(), key=lambda item: len(item[0]), reverse=True)

    def price(self, model: str) -> Price | None:
        """Return the price of the model, ``None`` if the table has none."""
        return next((price for start, price in self._prices if model.startswith(start)), None)

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Return the cost in millionths of a USD, rounded up; ``None`` for an unknown model."""
        price = self.price(model)
        if price is None:
            return None
        cache_read = price.input if price.cache_read is None else price.cache_read
        cache_write = price.input if price.cache_write is None else price.cache_write
        # USD per million tokens is the same number as millionths of a USD per token.
        parts = (
            (usage.input_tokens, price.input),
            (usage.cache_read_tokens, cache_read),
            (usage.cache_write_tokens, cache_write),
            (usage.output_tokens, price.output),
        )
        return math.ceil(sum((tokens * Decimal(str(each)) for tokens, each in parts), Decimal(0)))
