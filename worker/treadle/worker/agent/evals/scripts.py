"""Models that cost nothing: one answers from a case's script, one from a run's journal.

Both stand behind the port of a model; neither makes a request of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.conversation import (
    Block,
    ModelError,
    ModelFault,
    ModelRequest,
    ModelResponse,
    Usage,
)
from treadle.worker.agent.core.entries import Answered, Compacted, Entry, Heard, Stopped
from treadle.worker.agent.core.spec import FINAL_OUTPUT
from treadle.worker.agent.core.state import text_of
from treadle.worker.agent.core.summary import SYSTEM, accept
from treadle.worker.agent.evals.case import ScriptedTurn
from treadle.worker.agent.models.port import Model, OnDelta

Step = ModelResponse | ModelFault
_SUMMARY = "## Done\nWhat the script says.\n## Open\nWhat the script says next."


class _Offline:
    """What a model that answers from a list has in common; it measures like ``model``."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def provider(self) -> str:
        """That of the model it stands for."""
        return self._model.provider

    @property
    def name(self) -> str:
        """That of the model it stands for: prices and switches by name go on working."""
        return self._model.name

    @property
    def context_window(self) -> int:
        """That of the model it stands for."""
        return self._model.context_window

    @property
    def max_output_tokens(self) -> int:
        """That of the model it stands for."""
        return self._model.max_output_tokens

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Nobody counts."""
        del request
        return None

    async def close(self) -> None:
        """Nothing is open."""

    async def respond(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> ModelResponse:
        """Return the next answer; raise ``ModelError`` for a failure or at the end."""
        del on_delta, timeout_s, api_key
        step = self._summary(request) if is_summary(request) else self._next(request)
        if isinstance(step, ModelFault):
            raise ModelError(step)
        return step

    def _summary(self, request: ModelRequest) -> Step:
        return answer_of([{"type": "text", "text": _SUMMARY}], request)

    def _next(self, request: ModelRequest) -> Step:
        raise NotImplementedError


class ScriptedModel(_Offline):
    """Answers with the turns of a script, in order."""

    def __init__(
        self,
        turns: Sequence[ScriptedTurn],
        model: Model,
        *,
        tool_name: Callable[[str], str] = lambda name: name,
    ) -> None:
        """``tool_name`` spells a name of the script as the agent does."""
        super().__init__(model)
        self._turns = tuple(turns)
        self._tool_name = tool_name
        self._taken = 0

    def _next(self, request: ModelRequest) -> Step:
        index, self._taken = self._taken, self._taken + 1
        if index >= len(self._turns):
            has = f"{len(self._turns)} turn{'' if len(self._turns) == 1 else 's'}"
            return _ended(f"script_exhausted: the script has {has}, and one more was asked for")
        turn = self._turns[index]
        if turn.error is not None:
            return ModelFault(kind=turn.error.kind, message=turn.error.message)
        content = self._content(turn, index, request)
        has_calls = any(block["type"] == "tool_use" for block in content)
        stop_reason = turn.stop_reason or ("tool_use" if has_calls else "end_turn")
        usage = None
        if turn.usage is not None:
            usage = msgspec.convert(msgspec.to_builtins(turn.usage), Usage)
        return answer_of(content, request, stop_reason=stop_reason, usage=usage)

    def _content(self, turn: ScriptedTurn, index: int, request: ModelRequest) -> list[Block]:
        content: list[Block] = [{"type": "text", "text": turn.text}] if turn.text else []
        calls = [(self._tool_name(call.tool), call.args, call.id) for call in turn.calls]
        if turn.output is not msgspec.UNSET:
            if any(tool.get("name") == FINAL_OUTPUT for tool in request.tools):
                # The tool takes an object; a result of another type is a field of it.
                is_object = isinstance(turn.output, dict)
                args = turn.output if is_object else {"result": turn.output}
                calls.append((FINAL_OUTPUT, args, ""))
            else:
                content.append({"type": "text", "text": str(turn.output)})
        for number, (name, args, id_) in enumerate(calls):
            id_ = id_ or f"call_{index + 1}_{number + 1}"
            content.append({"type": "tool_use", "id": id_, "name": name, "input": args})
        return content


class RecordedModel(_Offline):
    """Answers as the model of a recorded run did, from where a saved state has left off."""

    def __init__(
        self, entries: Iterable[Entry], model: Model, *, after: Iterable[Entry] = ()
    ) -> None:
        """``after`` are the entries that a run which goes on has already."""
        super().__init__(model)
        entries = list(entries)
        self._steps = _steps(entries)
        self._summaries = [each for each in entries if isinstance(each, Compacted)]
        after = list(after)
        self._taken = len(_steps(after))
        self._compacted = sum(isinstance(each, Compacted) for each in after)

    @property
    def is_used_up(self) -> bool:
        """True when all that was recorded has been given."""
        return self._taken >= len(self._steps)

    def _next(self, request: ModelRequest) -> Step:
        del request
        index, self._taken = self._taken, self._taken + 1
        if index >= len(self._steps):
            return _ended(
                f"not_recorded: the recording has {len(self._steps)} answers of the model, and "
                "one more was asked for"
            )
        return self._steps[index]

    def _summary(self, request: ModelRequest) -> Step:
        # Which of the calls of one compaction this is does not matter: the last one counts.
        index = min(self._compacted, len(self._summaries) - 1)
        recorded = text_of(self._summaries[index].block) if self._summaries else ""
        text = recorded if accept(recorded) else _SUMMARY
        return answer_of([{"type": "text", "text": text}], request, usage=Usage())


def is_summary(request: ModelRequest) -> bool:
    """True for a call that asks for the summary of a conversation."""
    return any(block.get("text") == SYSTEM for block in request.system)


def answer_of(
    content: list[Block],
    request: ModelRequest,
    *,
    stop_reason: str = "end_turn",
    usage: Usage | None = None,
) -> ModelResponse:
    """Return an answer; its usage is estimated if not given."""
    if usage is None:
        usage = Usage(
            input_tokens=tokens.estimate_request(request),
            output_tokens=tokens.estimate(content),
            is_estimated=True,
        )
    return ModelResponse(content=content, stop_reason=stop_reason, usage=usage, model=request.model)


def _steps(entries: Iterable[Entry]) -> list[Step]:
    """Return what the model was heard to say, and the failures that show in the journal."""
    steps: list[Step] = []
    for entry in entries:
        match entry:
            case Answered():
                steps.append(
                    ModelResponse(
                        content=entry.content,
                        stop_reason=entry.stop_reason,
                        usage=entry.usage,
                        model=entry.model,
                        id=entry.response_id,
                    )
                )
            case Heard() if entry.is_malformed:
                steps.append(ModelFault(kind="malformed", message="as it was recorded"))
            case Stopped() if entry.fault is not None:
                steps.append(entry.fault)
            case _:
                pass
    return steps


def _ended(message: str) -> ModelFault:
    return ModelFault(kind="other", message=message)
