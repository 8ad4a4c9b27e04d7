"""What the adapter stands on in ``pydantic_ai.durable_exec``, stated: a version of the library that
changes any of it fails here. Method: look at the library; run one agent and read its journal."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version
from typing import Any, get_args

from packaging.version import Version
from pydantic import TypeAdapter
from pydantic_ai import durable_exec
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallToolResult,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    JournalCallableOperationBackend,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    conversation_id_from_run_id,
)

from treadle.worker.agent.pydantic_ai.capability import TreadleDurability

KNOWN_OPERATIONS = {
    "CapabilityOperationId",
    "EventStreamHandlerId",
    "ModelCancelSuspendedResponseId",
    "ModelCompactMessagesId",
    "ModelRequestId",
    "ToolsetCallToolId",
    "ToolsetGetInstructionsId",
    "ToolsetGetToolsId",
    "ToolsetValidateToolArgumentsId",
}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_version_is_one_that_was_looked_at() -> None:
    assert Version("2.68") <= Version(version("pydantic-ai-slim")) < Version("3")


def test_all_that_is_imported_is_public() -> None:
    source = inspect.getsource(inspect.getmodule(TreadleDurability))  # type: ignore[arg-type]
    block = source.split("from pydantic_ai.durable_exec import (")[1].split(")")[0]
    used = {name.strip() for name in block.split(",") if name.strip()}
    assert used | {"record_durable_unit", "replay_scope"} <= set(durable_exec.__all__)


def test_each_kind_of_operation_is_known() -> None:
    assert {kind.__name__ for kind in get_args(DurableOperationId)} == KNOWN_OPERATIONS


def test_a_backend_is_asked_as_it_was() -> None:
    execute = ["self", "operation_id", "name", "body", "cache_key", "config"]
    assert parameters(JournalCallableOperationBackend.execute) == execute
    assert parameters(JournalCallableOperationBackend.bind) == ["self", "operation"]
    assert JournalCallableOperationBackend.__abstractmethods__ == {"execute"}
    made = parameters(RoleBasedOperationConfig)
    assert made == ["model", "event", "capability", "tool", "resolve_tool"]
    fields = {field.name for field in dataclasses.fields(DurableOperation)}
    assert {"operation_id", "handler", "result_codec", "config_role"} <= fields


def test_a_capability_is_asked_as_it_was() -> None:
    asked = {"in_durable_context", "get_durable_operation_backend"}
    assert BaseDurabilityCapability.__abstractmethods__ == asked
    assert parameters(BaseDurabilityCapability.get_default_run_id) == ["self"]
    assert parameters(BaseDurabilityCapability.get_default_conversation_id) == ["self", "run_id"]
    assert parameters(BaseDurabilityCapability.get_run_start_time) == ["self", "run_id"]
    needed = {
        "engine_name",
        "durable_unit_noun",
        "durable_container_noun",
        "codec",
        "serialization_failure",
        "toolset_lifecycles",
        "sequential_tools_in_durable_context",
        "unsupported_runtime_toolset_kinds",
    }
    assert needed <= {field.name for field in dataclasses.fields(DurabilityEngineSpec)}


def test_a_tool_call_carries_its_name_arguments_and_context() -> None:
    for params in (ToolsetCallToolParams, DynamicToolsetCallToolParams):
        fields = {field.name for field in dataclasses.fields(params)}
        assert {"name", "tool_args", "ctx"} <= fields


def test_names_that_are_stored_are_what_they_were() -> None:
    namer = JournalOperationNamer("clerk")
    call = ToolsetCallToolId("function", toolset_id="<agent>")
    mcp = ToolsetCallToolId("mcp", toolset_id="shop")
    assert {
        namer.invocation_name(ModelRequestId(model_name="m"), label=None).operation_name,
        namer.invocation_name(
            ModelRequestId(model_name="m", streaming=True), label=None
        ).operation_name,
        namer.invocation_name(call, label="pay").operation_name,
        namer.invocation_name(mcp, label=None).operation_name,
    } == {
        "clerk__model.request",
        "clerk__model.request_stream",
        "clerk__function_toolset__<agent>.call_tool:pay",
        "clerk__mcp_server__shop.call_tool",
    }
    assert conversation_id_from_run_id("run:step:0") == "c2847681-d2bd-56db-873c-794463ba87c3"


def test_a_stored_result_of_a_tool_has_the_form_that_decisions_are_written_in() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(CallToolResult)
    for stored in (
        {"result": "paid", "kind": "tool_return"},
        {"message": "Not today.", "kind": "tool_failed"},
    ):
        loaded = JSON_CODEC.load(CallToolResult, stored)
        assert adapter.dump_python(loaded, mode="json") == stored
