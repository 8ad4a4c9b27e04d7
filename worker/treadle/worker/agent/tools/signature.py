"""What a function's signature says of the tool it becomes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo

from treadle.sdk.errors import clause
from treadle.worker.agent.tools.arguments import Parameter, TypedArguments, json_schema
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.docstrings import read_docstring

_EMPTY = inspect.Parameter.empty
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNSUPPORTED = (PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError, NameError)


class Signature(NamedTuple):
    """A function's signature, read."""

    description: str
    arguments: TypedArguments
    defaults: dict[str, Any]
    takes_context: bool
    is_async: bool


def read_signature(
    function: Callable[..., Any], local_names: Mapping[str, Any]
) -> tuple[Signature | None, list[str]]:
    """Return what the signature says, and its faults: one of the two is empty."""
    own = underlying(function)
    problems: list[str] = []
    if inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own):
        problems.append("it is a generator, and a call has one result. Return it instead")
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as exc:
        return None, [f"it cannot be looked at: {clause(exc)}. Wrap it in a function of your own"]
    hints, problem = _hints(own, local_names)
    if problem:
        return None, [*problems, problem]
    takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name))
    documented = read_docstring(own)
    shown: list[Parameter] = []
    for parameter in parameters[1:] if takes_context else parameters:
        fault = _fault(parameter, hints)
        if fault:
            problems.append(fault)
            continue
        shown.append(
            Parameter(
                name=parameter.name,
                type=hints[parameter.name],
                description=documented.parameters.get(parameter.name, ""),
                has_default=parameter.default is not _EMPTY,
                default=None if parameter.default is _EMPTY else parameter.default,
            )
        )
    if problems:
        return None, problems
    return (
        Signature(
            description=documented.function,
            arguments=TypedArguments(shown),
            defaults={p.name: p.default for p in shown if p.has_default},
            takes_context=takes_context,
            is_async=inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(function),
        ),
        [],
    )


def underlying(function: Any) -> Any:
    """Return the function inside a partial, a wrapper, a method or a callable object."""
    # As Any: the checkers do not agree on what isinstance makes of a generic class.
    partial: Any = functools.partial
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def _hints(own: Any, local_names: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    # Without the result's annotation: it is not needed, and may name what cannot be looked up.
    annotations = {k: v for k, v in getattr(own, "__annotations__", {}).items() if k != "return"}
    stub = type("_Stub", (), {"__annotations__": annotations})
    names: dict[str, Any] = getattr(own, "__globals__", {})
    try:
        return get_type_hints(stub, names, dict(local_names), include_extras=True), ""
    except (NameError, AttributeError, TypeError, SyntaxError) as exc:
        return {}, (
            f"its annotations cannot be evaluated: {clause(exc)}. "
            "Import or define what they name before the tool, outside `if TYPE_CHECKING`"
        )


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, ToolContext)


def _fault(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str:
    """Return why the parameter cannot be offered to a model, or ''."""
    name = parameter.name
    if parameter.kind not in _BY_NAME:
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        if parameter.kind in stars:
            shown = f"{stars[parameter.kind]}{name}"
            return f"{shown} has no schema. Name the parameters, or take one list or dict"
        return f"parameter {name!r} is positional only, and arguments come by name. Drop the `/`"
    if name not in hints:
        what = "ToolContext[Deps]" if name in ("ctx", "context") else "type"
        return f"parameter {name!r} has no annotation, so it has no schema. Add its {what}"
    if _is_context(hints[name]):
        return f"parameter {name!r} is a ToolContext but not the first one. Move it to the front"
    if isinstance(parameter.default, FieldInfo):
        return (
            f"the default of parameter {name!r} is a Field(), which the function would get as "
            "its value. Write Annotated[type, Field(...)] = default"
        )
    try:
        json_schema(TypeAdapter(hints[name]))
    except _UNSUPPORTED as exc:
        reason = str(exc).splitlines()[0]
        return (
            f"parameter {name!r} has a type that JSON cannot give: {reason} Use plain JSON "
            "types, dataclasses or pydantic models"
        )
    return ""
