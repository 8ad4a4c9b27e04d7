"""What an agent is made of, looked at before there is one: its models and its tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.sdk.errors import UserError
from treadle.sdk.wording import shown
from treadle.worker.agent.models.resolve import check_model
from treadle.worker.agent.tools.tool import Tool


def problems_of_tools(tools: Iterable[object]) -> list[str]:
    """Return which of them are no tools, why that matters, and what to write."""
    return [_no_tool(each) for each in tools if not isinstance(each, Tool)]


def names_of(tools: Iterable[object]) -> list[str]:
    """Return the names of those that are tools."""
    return [each.name for each in tools if isinstance(each, Tool)]


def problems_of_models(models: Mapping[str, object]) -> list[str]:
    """Return which of them no model can be made of; each is named by its argument."""
    return [text for name, model in models.items() if (text := _no_model(name, model))]


def _no_tool(given: object) -> str:
    if not callable(given):
        return (
            f"tools: {shown(given)} is no tool, and a model is offered nothing else. Make one of a "
            "function with @tool"
        )
    name = getattr(given, "__name__", type(given).__name__)
    return (
        f"tools: {name} is a plain function: what a model may do with it, and what happens to a "
        f"call after a crash, only @tool declares. Write @tool above it, or give tool({name})"
    )


def _no_model(name: str, model: object) -> str:
    if not isinstance(model, str) and callable(getattr(model, "respond", None)):
        return ""
    try:
        check_model(model)
    except UserError as exc:
        text = str(exc)
        return text if text.startswith(f"{name} ") else f"{name}: {text}"
    return ""
