"""A tool: a function with what a model has to know of it, and the rules for executing it.

    @tool(idempotent=True)
    async def read_order(order_id: str) -> Order:
        '''Read one order.

        Args:
            order_id: The order's number, e.g. "O-104".
        '''

How it is made from a function is in ``declaring.py``, how it is executed in ``executing.py``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from treadle.worker.agent.core.spec import ToolSpec
from treadle.worker.agent.tools.arguments import Arguments

P = ParamSpec("P")
R = TypeVar("R")

NAME_PATTERN = re.compile(r"^[a-zA-Z0-9_-]{1,64}\Z")
"""What the model APIs accept as the name of a tool."""
TIMEOUT_S = 60.0
TIMEOUT_S_MAX = 24 * 3600.0
"""A day: a call that takes longer should be a step of the workflow, or a wait for a signal."""
MAX_OUTPUT_BYTES = 64 * 1024
"""About 16,000 tokens, more than a model makes good use of at once."""
OUTPUT_BYTES_MAX = 256 * 1024
"""Half of what one stored message may hold: a result travels in one."""
OUTPUT_BYTES_MIN = 256
"""The notice of what was left out needs some of it."""
MAX_ATTEMPTS = 3
ATTEMPTS_MAX = 10
"""Every further one would wait 8 s; what is away for longer is the model's to know."""

Args = Mapping[str, Any]
"""Arguments by name as the function gets them, defaults included."""
Reconcile = Callable[[Any, Args], Awaitable[Any] | Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool(Generic[P, R]):
    """A function offered to a model. Calling it calls the function."""

    name: str
    description: str
    arguments: Arguments
    function: Callable[P, R]
    is_async: bool
    takes_context: bool = False
    """Its first parameter is a ``ToolContext``, which the model does not see."""
    defaults: Args = field(default_factory=dict[str, Any])
    idempotent: bool = False
    """A second call with the same arguments does no harm: it is retried, and run again after a
    crash."""
    read_only: bool = False
    """It changes nothing: it also runs where nothing may be changed."""
    sequential: bool = True
    """No other call of the batch runs beside it."""
    timeout_s: float = TIMEOUT_S
    """Of one attempt."""
    requires_approval: bool | Callable[[Args], bool] = False
    output_bytes_max: int = MAX_OUTPUT_BYTES
    effect: Literal["once"] | None = None
    """``once``: the effect must never happen twice; what is uncertain goes to a person."""
    key: Callable[[Args], str] | None = None
    """The idempotency key of a call; ``None``: run, step and the call's id."""
    reconcile: Reconcile | None = None
    """Finds out whether a call took effect that was under way at a crash: its result, or ``None``
    if it is certain that it did not."""
    attempts_max: int = MAX_ATTEMPTS
    """Attempts of one call in all. Counts for idempotent tools; others have one."""
    terminate: bool = False
    """Its success asks that the turn be the last."""
    polling: bool = False
    """Asking again with the same arguments is its purpose, as long as the answers differ."""
    is_shell: bool = False
    """Its ``command`` argument is a shell command."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.arguments.schema

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model and the rules see it."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            input_schema=self.input_schema,
            idempotent=self.idempotent,
            polling=self.polling,
            is_shell=self.is_shell,
        )

    def bind(self, proposed: Args) -> dict[str, Any]:
        """Return the arguments as Python values, defaults included; raise ``ArgumentFaults``."""
        return {**self.defaults, **self.arguments.validate(proposed)}

    def needs_approval(self, proposed: Args) -> bool:
        """True when a person has to agree to a call with these (valid) arguments.

        A rule of the tool that raises counts as yes: it fails closed.
        """
        if isinstance(self.requires_approval, bool):
            return self.requires_approval
        try:
            return bool(self.requires_approval(self.bind(proposed)))
        except Exception:  # noqa: BLE001 — a user's rule may raise anything
            return True

    def idempotency_key(self, args: Args, *, run: str, step: str, call_id: str) -> str:
        """Return the key of a call; raise what the tool's own ``key`` raises."""
        if self.key is None:
            return f"{run}:{step}:{call_id}"
        made: Any = self.key(args)
        if not isinstance(made, str) or not made:
            raise TypeError(
                f"key of tool {self.name!r} returned {made!r}, which is no text. Return a string "
                "that is the same for calls that are the same."
            )
        return made


AnyTool = Tool[..., Any]
