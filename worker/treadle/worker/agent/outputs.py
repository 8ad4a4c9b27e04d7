"""The typed output of an agent: what the model is asked for, and whether what came is it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
import pydantic
from pydantic_core import PydanticSerializationError

from treadle.sdk import payload
from treadle.sdk.errors import InvalidPayload, clause
from treadle.worker.agent.core.spec import FINAL_OUTPUT, ToolSpec
from treadle.worker.agent.core.state import State

Evidence = Callable[[Any, State], "str | bool | Awaitable[str | bool | None] | None"]
"""Asked about a proposed result: ``None`` or true accepts it, false or a text does not.

The text is for the model: it says what is missing."""

_PROBLEM_CHARS_MAX = 2_000


class Output:
    """The type of an agent's result; ``str`` is the text of the last answer."""

    def __init__(self, type_: Any, evidence: Sequence[Evidence] = ()) -> None:
        """Make it of a type that pydantic can validate; raise ``TypeError`` if it cannot."""
        self.type = type_
        self._evidence = tuple(evidence)
        self._adapter: pydantic.TypeAdapter[Any] | None = None
        self._is_wrapped = False
        self.tool: ToolSpec | None = None
        if type_ is str:
            return
        try:
            self._adapter = pydantic.TypeAdapter(type_)
            schema = self._adapter.json_schema()
        except Exception as exc:
            raise TypeError(
                f"output_type {type_!r} cannot be described to a model: {clause(exc)}. "
                "Use a pydantic model, a dataclass, a TypedDict or a type of plain JSON values."
            ) from exc
        if schema.get("type") != "object":
            self._is_wrapped = True
            definitions = schema.pop("$defs", None)
            schema = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
            if definitions:
                schema["$defs"] = definitions
        self.tool = ToolSpec(
            name=FINAL_OUTPUT,
            description="Give the final result of the run. Call it once, when all is done.",
            input_schema=schema,
            idempotent=True,
        )

    async def check(self, proposed: Any, state: State) -> tuple[str, msgspec.Raw]:
        """Return what is wrong with a proposed result, '' if nothing, and the result as JSON."""
        value = proposed
        if self._adapter is not None:
            if self._is_wrapped and isinstance(proposed, dict):
                value = cast("dict[str, Any]", proposed).get("result")
            try:
                value = self._adapter.validate_json(msgspec.json.encode(value))
            except pydantic.ValidationError as exc:
                return _explained(exc), msgspec.Raw(b"null")
        for evidence in self._evidence:
            verdict = evidence(value, state)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            if isinstance(verdict, str) and verdict:
                return f"The result is not accepted: {verdict}", msgspec.Raw(b"null")
            if verdict is False:
                name = getattr(evidence, "__name__", "a check")
                text = f"The result is not accepted: {name} found its evidence missing."
                return text, msgspec.Raw(b"null")
        try:
            if self._adapter is not None:
                return "", msgspec.Raw(self._adapter.dump_json(value))
            return "", msgspec.Raw(payload.encode("output of the agent", value))
        except (InvalidPayload, PydanticSerializationError) as exc:
            return f"The result cannot be stored: {exc}", msgspec.Raw(b"null")

    def decode(self, raw: msgspec.Raw) -> Any:
        """Return the result as a value of the type."""
        if self._adapter is not None:
            return self._adapter.validate_json(bytes(raw))
        return msgspec.json.decode(raw)


def _explained(exc: pydantic.ValidationError) -> str:
    lines = [
        f"- {'.'.join(str(part) for part in error['loc']) or 'the result'}: {error['msg']}"
        for error in exc.errors(include_url=False, include_input=False)
    ]
    text = "The result does not fit its schema:\n" + "\n".join(lines)
    return text[:_PROBLEM_CHARS_MAX] + "\nCorrect it and give the whole result again."
