"""Makes tools of functions, and refuses those that cannot be offered, with all their faults."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, cast, overload

from treadle.sdk.errors import Problem
from treadle.worker.agent.tools.arguments import UntypedArguments
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.errors import InvalidTool
from treadle.worker.agent.tools.signature import read_signature
from treadle.worker.agent.tools.tool import (
    ATTEMPTS_MAX,
    MAX_ATTEMPTS,
    MAX_OUTPUT_BYTES,
    NAME_PATTERN,
    OUTPUT_BYTES_MAX,
    OUTPUT_BYTES_MIN,
    TIMEOUT_S,
    TIMEOUT_S_MAX,
    AnyTool,
    Args,
    P,
    R,
    Reconcile,
    Tool,
)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    idempotent: bool = False,
    read_only: bool = False,
    sequential: bool | None = None,
    timeout: float | timedelta = TIMEOUT_S,
    requires_approval: bool | Callable[[Args], bool] = False,
    max_output: int = MAX_OUTPUT_BYTES,
    effect: Literal["once"] | None = None,
    key: Callable[[Args], str] | None = None,
    reconcile: Reconcile | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    terminate: bool = False,
    polling: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function; raise ``InvalidTool`` naming every fault of its definition.

    The model sees the name, the docstring and the annotated parameters. ``timeout`` is of one
    attempt, in seconds; ``max_output`` is in bytes; what is ``read_only`` is idempotent, and
    ``sequential`` is the opposite of that unless given. See ``Tool`` for what each option means.
    """
    # Annotations may be text that names what is local to the place of the definition.
    names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage]
    if function is not None:
        return make_tool(function, local_names=names, **options)

    def decorate(function: Callable[..., Any]) -> AnyTool:
        return make_tool(function, local_names=names, **options)

    return decorate


def make_tool(
    function: Callable[P, R],
    *,
    name: str = "",
    description: str = "",
    idempotent: bool = False,
    read_only: bool = False,
    sequential: bool | None = None,
    timeout: float | timedelta = TIMEOUT_S,
    max_output: int = MAX_OUTPUT_BYTES,
    max_attempts: int = MAX_ATTEMPTS,
    local_names: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tool[P, R]:
    """Make a tool of a function; see ``tool``."""
    name = name or str(getattr(function, "__name__", type(function).__name__))
    timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    signature, problems = read_signature(function, local_names or {})
    problems = [*problems, *_number_problems(timeout_s, max_output, max_attempts)]
    if not NAME_PATTERN.match(name):
        problems.append(
            f"its name {name!r} is not 1 to 64 of the characters A-Z a-z 0-9 _ -, which is what "
            "the model APIs accept. Give name="
        )
    effect = options.get("effect")
    if effect not in (None, "once"):
        problems.append(f"effect is {effect!r}; it is 'once' or None")
    if effect == "once" and (idempotent or read_only):
        option = "idempotent" if idempotent else "read_only"
        problems.append(
            f"effect='once' and {option}=True contradict each other: an idempotent call is "
            "repeated after a crash, and one that only reads is idempotent. Leave one of them out"
        )
    idempotent = idempotent or read_only
    if signature is None or problems:
        raise InvalidTool([Problem(f"tool {name!r}", text) for text in problems])
    return Tool(
        name=name,
        description=description or signature.description,
        arguments=signature.arguments,
        function=function,
        is_async=signature.is_async,
        takes_context=signature.takes_context,
        defaults=signature.defaults,
        idempotent=idempotent,
        read_only=read_only,
        sequential=not idempotent if sequential is None else sequential,
        timeout_s=timeout_s,
        output_bytes_max=max_output,
        attempts_max=max_attempts,
        **options,
    )


def tool_from_schema(
    name: str,
    description: str,
    input_schema: Mapping[str, Any],
    call: Callable[[ToolContext[Any], dict[str, Any]], Awaitable[object]],
    *,
    idempotent: bool = False,
    read_only: bool = False,
    sequential: bool | None = None,
    timeout: float | timedelta = TIMEOUT_S,
    requires_approval: bool | Callable[[Args], bool] = False,
    max_output: int = MAX_OUTPUT_BYTES,
    max_attempts: int = MAX_ATTEMPTS,
) -> AnyTool:
    """Make a tool that another process describes and executes.

    ``call(ctx, arguments)`` gets the arguments as one dictionary. Of them only the names and
    outer types are checked here.
    """
    timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    idempotent = idempotent or read_only
    problems = _number_problems(timeout_s, max_output, max_attempts)
    if not NAME_PATTERN.match(name):
        problems.append(f"its name {name!r} is not 1 to 64 of the characters A-Z a-z 0-9 _ -")
    if input_schema.get("type", "object") != "object":
        problems.append(f"its schema is of type {input_schema['type']!r}; it must be 'object'")
    if problems:
        raise InvalidTool([Problem(f"tool {name!r}", text) for text in problems])

    async def function(ctx: ToolContext[Any], /, **arguments: Any) -> object:
        return await call(ctx, arguments)

    return Tool(
        name=name,
        description=description,
        arguments=UntypedArguments(input_schema),
        function=function,
        is_async=True,
        takes_context=True,
        idempotent=idempotent,
        read_only=read_only,
        sequential=not idempotent if sequential is None else sequential,
        timeout_s=timeout_s,
        requires_approval=requires_approval,
        output_bytes_max=max_output,
        attempts_max=max_attempts,
    )


def check_tools(tools: Iterable[AnyTool | Callable[..., Any]]) -> dict[str, AnyTool]:
    """Return the tools by name; raise ``InvalidTool`` naming every fault of all of them.

    A plain function becomes a tool with the default options.
    """
    made: list[AnyTool] = []
    problems: list[Problem] = []
    for item in tools:
        if isinstance(item, Tool):
            made.append(cast("AnyTool", item))
            continue
        try:
            made.append(make_tool(item))
        except InvalidTool as exc:
            problems.extend(exc.problems)
    for name, count in Counter(each.name for each in made).items():
        if count > 1:
            problems.append(
                Problem(
                    f"tool {name!r}",
                    f"{count} tools have this name, and a call must mean one. Give name=",
                )
            )
    if problems:
        raise InvalidTool(problems)
    return {each.name: each for each in made}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, or ''."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _number_problems(timeout_s: float, max_output: int, max_attempts: int) -> list[str]:
    problems: list[str] = []
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        problems.append(f"timeout is {timeout_s} s; it must be above 0, up to {TIMEOUT_S_MAX:.0f}")
    if not OUTPUT_BYTES_MIN <= max_output <= OUTPUT_BYTES_MAX:
        problems.append(
            f"max_output is {max_output} bytes; it must be {OUTPUT_BYTES_MIN} to {OUTPUT_BYTES_MAX}"
        )
    if not 1 <= max_attempts <= ATTEMPTS_MAX:
        problems.append(f"max_attempts is {max_attempts}; it must be 1 to {ATTEMPTS_MAX}")
    return problems
