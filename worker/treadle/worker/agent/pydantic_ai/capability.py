"""The durable engine that pydantic-ai sees: a capability of an agent, and a backend behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError as PydanticUserError
from pydantic_ai.tools import AgentDepsT
from pydantic_core import to_jsonable_python

from treadle.sdk.errors import NonRetryable, clause
from treadle.worker.agent.pydantic_ai.scope import Call, active
from treadle.worker.agent.tools.canonical import args_hash

METADATA = "treadle"
IDEMPOTENT = {METADATA: {"idempotent": True}}
"""``metadata=`` of a tool of which a second call does no harm: it is made again after a crash."""

# Operations that ask and do not act. What the library adds to them one day counts as acting.
_REPEATABLE = (
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)

Params = TypeVar("Params")
Wire = TypeVar("Wire")
Result = TypeVar("Result")

_call: ContextVar[Call | None] = ContextVar("treadle_pydantic_ai_call", default=None)


class ToolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tool's metadata may say under ``treadle``."""

    idempotent: bool = False


class _Bound(BoundDurableOperation[Params, Wire, Result]):
    """An operation that notes which tool call it is made for."""

    def __init__(self, inner: BoundDurableOperation[Params, Wire, Result]) -> None:
        self._inner = inner

    @property
    def operation(self) -> DurableOperation[Params, Wire, Result]:
        return self._inner.operation

    async def __call__(self, params: Params, *, config: object | None = None) -> Result:
        token = _call.set(_call_of(params))
        try:
            return await self._inner(params, config=config)
        finally:
            _call.reset(token)


class _Backend(JournalCallableOperationBackend[ToolConfig]):
    def bind(
        self, operation: DurableOperation[Params, Wire, Result]
    ) -> BoundDurableOperation[Params, Wire, Result]:
        return _Bound(super().bind(operation))

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: ToolConfig,
    ) -> object:
        scope = active()
        if scope is None:
            return await body()
        once = not isinstance(operation_id, _REPEATABLE) and not config.idempotent
        return await scope.perform(name, body, call=_call.get(), once=once)


class TreadleDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable inside ``durable(ctx)``, and leaves others as they are.

    Give it to the agent when it is made, with a name: ``Agent(..., name="clerk",
    capabilities=[TreadleDurability()])``. The names of the agent, its toolsets and tools are
    stored in journals: runs that are under way do not survive their change.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Treadle",
        durable_unit_noun="operation",
        durable_container_noun="agent loop",
        codec=JSON_CODEC,
        serialization_failure=lambda exc: NonRetryable(
            f"the result of an operation has no JSON form, so it cannot be stored: {clause(exc)}. "
            "Return plain data or a pydantic model."
        ),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        # Operations of one name are counted, and the count must be the same after a crash.
        sequential_tools_in_durable_context=True,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    )

    @property
    def in_durable_context(self) -> bool:
        return active() is not None

    def get_default_run_id(self) -> str | None:
        scope = active()
        return None if scope is None else scope.new_run_id()

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        scope = active()
        if scope is None:
            return None

        async def now() -> str:
            return datetime.now(UTC).isoformat()

        return datetime.fromisoformat(str(await scope.perform(f"{self.name}__run_start", now)))

    def get_durable_operation_backend(self) -> DurableOperationBackend[ToolConfig]:
        plain = ToolConfig()
        return _Backend(
            agent_name=self.name or "",
            config=RoleBasedOperationConfig(
                model=plain, event=plain, capability=plain, tool=plain, resolve_tool=_tool_config
            ),
        )


def _tool_config(operation_id: DurableOperationId, tool: object | None, name: str) -> ToolConfig:
    definition: Any = getattr(tool, "tool_def", None)
    metadata: dict[str, Any] = getattr(definition, "metadata", None) or {}
    if METADATA not in metadata:
        return ToolConfig()
    try:
        return msgspec.convert(metadata[METADATA], ToolConfig)
    except msgspec.ValidationError as exc:
        raise PydanticUserError(
            f"the metadata {METADATA!r} of tool {name!r} is {metadata[METADATA]!r}, which is not "
            f"understood: {clause(exc)}. Leave it out, or give metadata=IDEMPOTENT."
        ) from exc


def _call_of(params: object) -> Call | None:
    if not isinstance(params, ToolsetCallToolParams | DynamicToolsetCallToolParams):
        return None
    arguments = to_jsonable_python(params.tool_args, fallback=repr)
    return Call(
        tool=params.name,
        call_id=params.ctx.tool_call_id or "",
        args_hash=args_hash(arguments),
    )
