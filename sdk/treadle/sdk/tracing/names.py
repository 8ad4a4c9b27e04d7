"""Every name that telemetry uses, in one place: a change of a convention is a change of a line.

``gen_ai.*`` are the OpenTelemetry conventions for generative AI, all of status Development, in the
names that backends read today; ``messaging.*`` those for messaging; ``treadle.*`` are our own, for
what no convention has: runs, steps, iterations and their bounds.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "treadle"

# ------------------------------------------------------------------ runs and steps

RUN_ID: Final = "treadle.run.id"
RUN_STATUS: Final = "treadle.run.status"
WORKFLOW: Final = "treadle.workflow.name"
VERSION: Final = "treadle.workflow.version"
LANE: Final = "treadle.lane"
STEP: Final = "treadle.step.name"
STEP_KIND: Final = "treadle.step.kind"
STEP_STATUS: Final = "treadle.step.status"
STEP_BRANCH: Final = "treadle.step.branch"
"""Of a choice: the branch it took."""
CHILD_RUN: Final = "treadle.child.run.id"
"""Of a step that starts runs: the last one."""
CHILD_WORKFLOW: Final = "treadle.child.workflow.name"
TASK_TYPE: Final = "treadle.task.type"
ITERATIONS: Final = "treadle.step.iterations"
SEGMENT: Final = "treadle.segment"

# ------------------------------------------------------------------ executions

ITERATION: Final = "treadle.iteration"
ATTEMPT: Final = "treadle.attempt"
TOKEN: Final = "treadle.token"
WORKER: Final = "treadle.worker.id"
VERDICT: Final = "treadle.verdict"
QUEUE_WAIT_S: Final = "treadle.queue.wait_s"
WAIT_REASON: Final = "treadle.wait.reason"
RECORDED_BY: Final = "treadle.recorded_by.attempt"
"""Of a call that a lost execution recorded and a later one told of."""

CHUNK: Final = "treadle.map.chunk"
ITEM_FIRST: Final = "treadle.map.item.first"
"""Index of the first item of a chunk."""
ITEMS: Final = "treadle.map.items"
ITEMS_FAILED: Final = "treadle.map.items.failed"
ITEM_FAILURE: Final = "treadle.map.item.failure"
"""Which item of a chunk failed first, and why."""

# ------------------------------------------------------------------ spending and bounds

COST_USD: Final = "treadle.cost_usd"
"""What the step has cost so far, this execution included."""
TOOL_CALLS: Final = "treadle.usage.tool_calls"
INPUT_TOKENS: Final = "treadle.usage.input_tokens"
OUTPUT_TOKENS: Final = "treadle.usage.output_tokens"
ITERATIONS_LEFT: Final = "treadle.remaining.iterations"
DURATION_LEFT_S: Final = "treadle.remaining.duration_s"
TOOL_CALLS_LEFT: Final = "treadle.remaining.tool_calls"
TOKENS_LEFT: Final = "treadle.remaining.tokens"
COST_LEFT_USD: Final = "treadle.remaining.cost_usd"

# ------------------------------------------------------------------ conventions

ERROR_TYPE: Final = "error.type"
LINK: Final = "treadle.link"
"""What a link leads to: ``caller``, ``previous``, ``next``, ``run`` or ``child``."""

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
TURNS: Final = "gen_ai.agent.turn.count"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE: Final = "gen_ai.usage.cache_creation.input_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"

INPUT_MESSAGES: Final = "gen_ai.input.messages"
"""What the model is told since its last answer: each message stands in a trace once."""
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
INPUT_VALUE: Final = "input.value"
INPUT_TYPE: Final = "input.mime_type"
OUTPUT_VALUE: Final = "output.value"
OUTPUT_TYPE: Final = "output.mime_type"
JSON: Final = "application/json"

TOOL_STATUS: Final = "treadle.tool.status"
TRIES: Final = "treadle.tries"
CALL_COST_USD: Final = "treadle.call.cost_usd"
COMPACTED_FROM: Final = "treadle.compaction.tokens_before"
COMPACTED_TO: Final = "treadle.compaction.tokens_after"
AGENT_PATH: Final = "treadle.agent.path"
"""The calls that lead to a sub-agent, from the outermost on."""

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"

OPENINFERENCE_KIND: Final = "openinference.span.kind"
"""What backends show a span as; for some it comes before the ``gen_ai`` operation."""
SESSION: Final = "session.id"
"""What groups traces: the run, whose long loops are traces of their own."""

# ------------------------------------------------------------------ span names

INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
RUN_STARTED: Final = "run started"
RUN_COMPLETED: Final = "run completed"
QUEUE_WAIT: Final = "queue wait"

WORKER_LOST: Final = "worker_lost"
"""``error.type`` of an execution whose worker vanished."""
