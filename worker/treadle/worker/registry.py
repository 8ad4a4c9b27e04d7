"""Which handler serves which task type, and what its signature says.

A handler takes one argument, its context. The annotation of that argument names the type its
input is decoded into: ``ctx: LoopContext[Diff]``. Without one the input is plain JSON.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from treadle.sdk.errors import HandlerError, clause
from treadle.sdk.ids import check_id
from treadle.worker.context import (
    LoopContext,
    SyncLoopContext,
    SyncTaskContext,
    TaskContext,
)

if TYPE_CHECKING:
    from treadle.worker.execution import Call

CONCURRENCY_MAX = 10_000
"""More executions than this in one process would only wait for its one core."""

_SYNC_OF: dict[type, type] = {TaskContext: SyncTaskContext, LoopContext: SyncLoopContext}
_CONTEXTS = (TaskContext, LoopContext, SyncTaskContext, SyncLoopContext)


class Handler(msgspec.Struct, frozen=True):
    """A registered handler."""

    type: str
    function: Callable[[Any], Any]
    is_sync: bool
    """A plain function: it runs in a thread, and its context blocks instead of awaiting."""
    is_loop: bool
    """Its annotation asks for a loop's context."""
    input_type: Any
    concurrency: int | None = None
    """Most executions at once; ``None`` is the worker's own bound."""

    def context(self, call: Call, value: Any) -> Any:
        """Return the context of one execution."""
        if self.is_loop or call.task.loop:
            return SyncLoopContext(call, value) if self.is_sync else LoopContext(call, value)
        return SyncTaskContext(call, value) if self.is_sync else TaskContext(call, value)


class Registry(Mapping[str, Handler]):
    """The handlers of a worker, by task type."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(
        self,
        task_type: str,
        function: Callable[[Any], Any],
        *,
        concurrency: int | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> Handler:
        """Register a handler; raise ``HandlerError`` if it cannot serve.

        ``local_names`` are the names of the place that defines it, for annotations as text.
        """
        check_id("task type", task_type)
        if task_type in self._handlers:
            known = _where(self._handlers[task_type].function)
            raise HandlerError(
                f"task type {task_type!r} has two handlers, {known} and {_where(function)}, and a "
                "task is executed by one. Rename one of the types, or remove a handler."
            )
        if concurrency is not None:
            check_concurrency(f"concurrency of handler {task_type!r}", concurrency)
        handler = _inspect(task_type, function, concurrency, local_names or {})
        self._handlers[task_type] = handler
        return handler

    def __getitem__(self, task_type: str) -> Handler:
        return self._handlers[task_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def check_concurrency(what: str, concurrency: int) -> None:
    """Raise ``HandlerError`` unless the number of executions at once is sensible."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise HandlerError(
            f"{what} is {concurrency}; a worker executes 1 to {CONCURRENCY_MAX} tasks at once. "
            "Give a number in that range."
        )


def _inspect(
    task_type: str,
    function: Callable[[Any], Any],
    concurrency: int | None,
    local_names: Mapping[str, Any],
) -> Handler:
    own = _underlying(function)
    if inspect.isasyncgenfunction(own) or inspect.isgeneratorfunction(own):
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}) is a generator, and a handler has one "
            "result. Return it instead of yielding."
        )
    is_async = inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(function)
    annotation = _annotation(task_type, function, local_names)
    context = get_origin(annotation) or annotation
    _check_context(task_type, function, annotation, is_async)
    arguments = get_args(annotation)
    return Handler(
        type=task_type,
        function=function,
        is_sync=not is_async,
        is_loop=context in (LoopContext, SyncLoopContext),
        input_type=arguments[0] if arguments else Any,
        concurrency=concurrency,
    )


def _check_context(
    task_type: str, function: Callable[[Any], Any], annotation: Any, is_async: bool
) -> None:
    context = get_origin(annotation) or annotation
    if context is Any:
        return
    if context not in _CONTEXTS:
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}) takes {annotation!r}; its argument is "
            "a context. Annotate it as ctx: TaskContext[InputType], or LoopContext[InputType] "
            "for an agent loop."
        )
    if not is_async and context in _SYNC_OF:
        sync = _SYNC_OF[context].__name__
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}) is a plain function but takes a "
            f"{context.__name__}, whose checkpoints must be awaited. Write `async def`, or "
            f"annotate the argument as {sync}."
        )
    if is_async and context not in _SYNC_OF:
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}) is async but takes a "
            f"{context.__name__}, which would block the event loop. Annotate the argument as "
            f"{context.__name__.removeprefix('Sync')}."
        )


def _annotation(
    task_type: str, function: Callable[[Any], Any], local_names: Mapping[str, Any]
) -> Any:
    parameters = [*inspect.signature(function).parameters.values()]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind in kinds]
    if not parameters or parameters[0].kind not in kinds or len(required) > 1:
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}) has the signature "
            f"{inspect.signature(function)}; it is called with one argument, its context. "
            "Define it as handler(ctx)."
        )
    annotation: Any = parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        return Any
    stub = type("_Stub", (), {"__annotations__": {"ctx": annotation}})
    names: dict[str, Any] = getattr(_underlying(function), "__globals__", {})
    try:
        return get_type_hints(stub, names, dict(local_names))["ctx"]
    except (NameError, AttributeError, TypeError, SyntaxError) as exc:
        raise HandlerError(
            f"handler {task_type!r} ({_where(function)}): its annotation {annotation!r} cannot "
            f"be evaluated: {clause(exc)}. "
            "Import or define what it names before the handler, outside "
            "`if TYPE_CHECKING`."
        ) from exc


def _underlying(function: Any) -> Any:
    """Return the function inside a partial, a wrapper, a method or a callable object."""
    # As Any: the checkers do not agree on what isinstance makes of a generic class.
    partial: Any = functools.partial
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def _where(function: Callable[[Any], Any]) -> str:
    code = getattr(_underlying(function), "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_filename}:{code.co_firstlineno}"
