"""Limits of a definition: each a named constant with the reason for its number.

Validation refuses what lies outside; the published JSON schema carries the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS_MAX = 1_000
"""Steps of one workflow. The run document holds an entry for each and is read and written at
every transition; at about 60 bytes an entry this keeps it below a tenth of a NATS message."""

EDGES_MAX = 10_000
"""Entries of all ``after`` lists together, the second factor of the cost of one transition. A
layer of 100 steps that all wait for another layer of 100 is just within."""

DEFINITION_BYTES_MAX = 512 * 1024
"""Size of a definition as JSON. It is stored as one message, of at most 1 MiB by default."""

DEPTH_MAX = 64
"""Nesting of documents and payloads. Python raises ``RecursionError`` a few hundred levels deep,
and where exactly depends on the caller's stack; real data stays below 20."""

NODES_MAX = 100_000
"""Values of one document after its YAML aliases are followed. Ten lines of nested aliases
stand for a billion values."""

DURATION_S_MAX = 10 * 366 * 24 * 3600
"""Ten years. A longer bound bounds nothing and is a mistaken unit."""

STEP_METADATA_MAX = 32
STEP_METADATA_CHARS_MAX = 2_048
"""Names and texts together: each task of the step carries them."""

ITERATIONS_MAX = 1_000_000
"""Iterations of one loop. Every iteration leaves an event in the history; a million of them with
a kilobyte of output each is a gigabyte for one run."""

ATTEMPTS_MAX = 1_000
"""Executions under one retry policy. At a minute of delay that is most of a day; what fails longer
needs a person, not an attempt."""

LOSSES_MAX = 10
"""Workers that may vanish over one iteration before it is taken for the cause."""

ITEMS_MAX = 100_000
"""Items of one map, each at least one execution: a run of more is several runs."""

PARALLEL_MAX = 1_000
"""Items of one map worked on at once. The run's document names the tasks under way."""
PLANNERS_DEEP_MAX = 10
"""Levels of planners below a planner. Each puts its id before those of its plan, of 64 characters
in all, so that ten is more than fits."""

ALLOWED_TASKS_MAX = 100
"""Task types that one planner may use: a plan is compared with each."""

PLANNED_INPUT_BYTES_MAX = 32 * 1024
"""What a plan gives one of its steps. It travels inside the task, beside what earlier steps have
put out; what is larger is read from where it is."""

SPENDING_MAX = 10**12
"""Tool calls or tokens of one loop. A trillion tokens is more than any run can pay for."""

COST_USD_MAX = 1_000_000.0
"""Dollars of one loop. A bound above that bounds nothing."""

MULTIPLIER_MAX = 100.0
"""Factor of exponential growth. Anything above reaches ``max_delay_s`` at the second failure."""

NON_RETRYABLE_MAX = 100
"""Error names of one retry policy; they are compared at every failure."""

TEXT_CHARS_MAX = 10_000
"""Characters of a description."""

SUGGESTIONS_MAX = 50
"""Spelling suggestions worked out for one definition: each compares one word with all steps."""

CYCLES_MAX = 20
"""Cycles reported at once: each is a search through the whole graph."""

WORD_CHARS_MAX = 128
"""Longest word that is shown in full and compared with others for a suggestion."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers a field may hold, both ends included, and why."""

    least: float
    most: float
    why: str


_DURATION = Range(
    0, DURATION_S_MAX, "it is a number of seconds, where 0 means none, of ten years at most"
)
_BUDGET = Range(
    0, ITERATIONS_MAX, "it is the iteration from which the handler is told, where 0 means never"
)

_SPENDING = Range(0, SPENDING_MAX, "it is how much may be used, where 0 means any amount")

CONDITION_CHARS_MAX = 1_000
"""Characters of a condition. A longer decision is a step's."""

BRANCHES_MAX = 100
"""Branches of one choice. A hundred conditions are asked in some milliseconds."""

PROMPT_CHARS_MAX = 4_000
"""Characters of what people are asked: a page, and what an inbox shows of it."""

CANCEL_ON_MAX = 5
"""Events that cancel the runs of a workflow: each run waits for each of them."""

APPROVERS_MAX = 50
"""Names of those who may answer; a longer list is a group with a name."""

HEADERS_MAX = 32
"""Headers of one response: a page of them."""

CONCURRENCY_MAX = 1_000
"""Slots of one limit. Its record names every holder and is written with each of them; a thousand
of the longest names are a quarter of a message."""

PLACES_MAX = 100
"""Runs of one workflow, or of one key of it, at once. Each start that finds no place and each end
looks at the documents of all that are under way; a hundred are some milliseconds."""

FLOW_LIMITS_MAX = 10
"""Limits of one step: each dispatch takes a slot of every one of them."""

COLLECTED_WAIT_S_MAX = 7 * 24 * 3600
"""A week. Starts that wait longer to become a run are data, for a store of their own."""

COLLECTED_MAX = 1_000
"""Starts of one batch. The run that they become reads and checks each of them."""

WEIGHTS_MAX = 1_000
"""Weights of one step. More of them are a table of tenants, which is no part of a definition."""

#: Every number of a definition, by the name of its field.
RANGES: dict[str, Range] = {
    "timeout_s": _DURATION,
    "max_duration_s": _DURATION,
    "loop_delay_s": _DURATION,
    "duration_s": _DURATION,
    "delay_s": _DURATION,
    "max_delay_s": _DURATION,
    "status": Range(
        200, 599, "it is the status of an HTTP response, and those below 200 are none yet"
    ),
    "max_iterations": Range(
        1,
        ITERATIONS_MAX,
        "a loop without a bound never ends when its handler never completes, and each iteration "
        "stays in the run's history",
    ),
    "max_parallel": Range(
        1, PARALLEL_MAX, "it is how many items are worked on at once, each by a worker's slot"
    ),
    "chunk": Range(0, ITEMS_MAX, "it counts items of one task, where 0 lets the engine choose"),
    "tolerated_failures": Range(0, ITEMS_MAX, "it counts items that may fail, where 0 means none"),
    "max_steps": Range(
        1, STEPS_MAX - 1, "it bounds the steps a planner may add, and a run has so many at most"
    ),
    "max_depth": Range(
        0, PLANNERS_DEEP_MAX, "it counts levels of planners below this one, where 0 means none"
    ),
    "quorum": Range(0, STEPS_MAX, "it counts steps of after, where 0 means all of them"),
    "budget_warn_at": _BUDGET,
    "budget_force_at": _BUDGET,
    **dict.fromkeys(
        ("max_tool_calls", "max_input_tokens", "max_output_tokens", "max_total_tokens"), _SPENDING
    ),
    "max_cost_usd": Range(
        0, COST_USD_MAX, "it is the dollars that may be spent, where 0 means any amount"
    ),
    "max_attempts": Range(
        1, ATTEMPTS_MAX, "it counts executions, the first included, where 1 means no retry"
    ),
    "multiplier": Range(1, MULTIPLIER_MAX, "it is the factor by which the delay grows"),
    "limit": Range(1, 1_000_000, "it is how many there may be, one at least"),
    "burst": Range(0, 1_000_000, "it is how many may begin at once, where 0 means the limit"),
    "per_s": Range(
        0.001, 366 * 24 * 3600, "it is the period in seconds, of a millisecond to a year"
    ),
    "period_s": Range(
        0.001,
        COLLECTED_WAIT_S_MAX,
        "it is how many seconds no start has to come for, of a millisecond to a week",
    ),
    "max_wait_s": Range(
        0.001,
        COLLECTED_WAIT_S_MAX,
        "it is how many seconds the first start waits at most, of a millisecond to a week",
    ),
    "max_size": Range(
        1, COLLECTED_MAX, "it counts the starts of one batch, and their run has a list of them"
    ),
    "jitter": Range(0, 1, "it is the share of the delay by which it varies"),
}
