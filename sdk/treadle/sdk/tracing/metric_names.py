"""Every metric there is: its name, unit, buckets and what it counts.

``treadle.*`` are our own, ``gen_ai.*`` the OpenTelemetry conventions for generative AI. Durations
are in seconds. No attribute is unbounded: workflows, steps and task types are those of registered
definitions, a run's id is in none. The names of attributes are in ``names.py``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

OTHER: Final = "_OTHER"
"""Stands for a value that would be one too many of its attribute."""

DURATION_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
OPERATION_S: Final = tuple(0.01 * 2**n for n in range(14))
"""As the conventions have it: 10 ms to 81.92 s."""
TOKENS: Final = tuple(4.0**n for n in range(14))
"""As the conventions have it: 1 to 67,108,864."""
ITERATIONS: Final = (1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0, 55.0, 100.0, 200.0, 1000.0)


class Instrument(NamedTuple):
    """One metric."""

    kind: Literal["counter", "histogram", "gauge"]
    name: str
    unit: str
    description: str
    buckets: tuple[float, ...] = ()


# ------------------------------------------------------------------ runs and steps

RUN_STARTED: Final = Instrument(
    "counter", "treadle.run.started", "{run}", "Runs that were requested."
)
RUN_COMPLETED: Final = Instrument(
    "counter", "treadle.run.completed", "{run}", "Runs that ended, by status."
)
RUN_DURATION: Final = Instrument(
    "histogram", "treadle.run.duration", "s", "From a run's request to its end.", DURATION_S
)
RUN_ACTIVE: Final = Instrument(
    "gauge", "treadle.run.active", "{run}", "Runs that have not ended, by status."
)
RUN_UNMOVED: Final = Instrument(
    "gauge",
    "treadle.run.unmoved",
    "s",
    "Of the running run in which nothing happened for longest: for how long.",
)
STEP_DURATION: Final = Instrument(
    "histogram",
    "treadle.step.duration",
    "s",
    "From a step's first dispatch to its end, waits included.",
    DURATION_S,
)
LOOP_ITERATIONS: Final = Instrument(
    "histogram",
    "treadle.loop.iterations",
    "{iteration}",
    "Iterations of a loop that ended, by what stopped it.",
    ITERATIONS,
)
DEAD_LETTERS: Final = Instrument(
    "counter", "treadle.dead_letters", "{letter}", "Dead letters that were stored, by reason."
)

# ------------------------------------------------------------------ tasks

TASK_DURATION: Final = Instrument(
    "histogram",
    "treadle.task.attempt.duration",
    "s",
    "One execution of a handler, by outcome: ok, error, lost.",
    DURATION_S,
)
TASK_WAIT: Final = Instrument(
    "histogram",
    "treadle.task.queue.wait",
    "s",
    "What an execution waited for its limits, a worker and a slot of it.",
    DURATION_S,
)
TASK_RETRIES: Final = Instrument(
    "counter", "treadle.task.retries", "{task}", "Executions that repeated one that had failed."
)
TASK_LOST: Final = Instrument(
    "counter", "treadle.task.lost", "{task}", "Executions whose worker vanished."
)
TASK_ACTIVE: Final = Instrument(
    "gauge", "treadle.task.active", "{task}", "Steps under way: queued, executed or delayed."
)
TASK_WORKERS: Final = Instrument(
    "gauge", "treadle.task.workers", "{worker}", "Living workers that serve the task type."
)
QUEUE_PENDING: Final = Instrument(
    "gauge", "treadle.task.queue.pending", "{task}", "Not handed to a worker yet."
)
QUEUE_ACK_PENDING: Final = Instrument(
    "gauge", "treadle.task.queue.ack_pending", "{task}", "Handed to a worker, or delayed there."
)

LIMIT_HELD: Final = Instrument(
    "gauge", "treadle.limit.held", "{slot}", "Slots of a concurrency limit that are held."
)
LIMIT_WAITING: Final = Instrument(
    "gauge", "treadle.limit.waiting", "{task}", "Tasks that wait for a slot of a limit."
)

# ------------------------------------------------------------------ engine and workers

EVENT_LAG: Final = Instrument(
    "gauge",
    "treadle.engine.event.lag",
    "s",
    "Age of the oldest event that no engine has handled; 0 when all are.",
)
EVENT_PENDING: Final = Instrument(
    "gauge", "treadle.engine.event.pending", "{event}", "Events that no engine has handled."
)
WORKER_SLOTS: Final = Instrument(
    "gauge", "treadle.worker.slots", "{slot}", "Executions a process may have under way."
)
WORKER_SLOTS_USED: Final = Instrument(
    "gauge", "treadle.worker.slots.used", "{slot}", "Executions a process has under way."
)
WORKER_WAITING: Final = Instrument(
    "gauge", "treadle.worker.waiting", "{task}", "Tasks a process holds that wait for a slot."
)
WORKER_ABANDONED: Final = Instrument(
    "gauge",
    "treadle.worker.handlers.abandoned",
    "{handler}",
    "Handlers that were told to stop and still run.",
)
WORKER_BLOCKED: Final = Instrument(
    "gauge",
    "treadle.worker.loop.blocked",
    "s",
    "For how long the event loop has stood still; 0 while it goes round.",
)

# ------------------------------------------------------------------ models and tools

OPERATION_DURATION: Final = Instrument(
    "histogram",
    "gen_ai.client.operation.duration",
    "s",
    "One call of a model, its tries together.",
    OPERATION_S,
)
TOKEN_USAGE: Final = Instrument(
    "histogram", "gen_ai.client.token.usage", "{token}", "Tokens of one call of a model.", TOKENS
)
TOOL_DURATION: Final = Instrument(
    "histogram", "gen_ai.execute_tool.duration", "s", "One call of a tool.", OPERATION_S
)
AGENT_DURATION: Final = Instrument(
    "histogram", "gen_ai.invoke_agent.duration", "s", "One call of a sub-agent.", DURATION_S
)

OF_ENGINES: Final = (
    *(RUN_STARTED, RUN_COMPLETED, RUN_DURATION, RUN_ACTIVE, RUN_UNMOVED),
    *(STEP_DURATION, LOOP_ITERATIONS, DEAD_LETTERS),
    *(TASK_DURATION, TASK_WAIT, TASK_RETRIES, TASK_LOST, TASK_ACTIVE, TASK_WORKERS),
    *(QUEUE_PENDING, QUEUE_ACK_PENDING, LIMIT_HELD, LIMIT_WAITING, EVENT_LAG, EVENT_PENDING),
    *(OPERATION_DURATION, TOKEN_USAGE, TOOL_DURATION, AGENT_DURATION),
)
OF_WORKERS: Final = (
    *(WORKER_SLOTS, WORKER_SLOTS_USED, WORKER_WAITING, WORKER_ABANDONED, WORKER_BLOCKED),
)

# ------------------------------------------------------------------ attributes of metrics alone

OUTCOME: Final = "treadle.outcome"
LIMIT: Final = "treadle.limit.name"
"""What shares a limit; all of its keys together."""
STOP_REASON: Final = "treadle.stop_reason"
REASON: Final = "treadle.reason"
TOKEN_TYPE: Final = "gen_ai.token.type"
