"""Streams, buckets and consumers: one table, created or checked when an engine starts.

What is asked of JetStream: file storage, limits retention, ``discard new`` (a full stream
refuses, it never drops), one message per subject in the buckets, schedules in a stream of
their own. The output stream alone drops its oldest: nothing is decided on it. What is not asked:
work-queue retention (an ack would delete a register), rollups, TTLs on registers, atomic
batches, remembered message ids.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import UserError
from treadle.sdk.namespace import PARTITIONS_MAX, NamespaceRecord, find_namespace
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

_SECOND_NS = 1_000_000_000
DUPLICATE_WINDOW_S = 5
"""Nothing depends on it; it spares a retried publish a second event, and its ids cost memory."""
EVENT_ACK_WAIT_S = 5.0
"""An un-acked event is handled again after this long; a redo is cheap and harmless."""
EVENT_ACK_PENDING_MAX = 20_000
PRESENCE_MAX_AGE_S = 30
DEAD_LETTER_MAX_AGE_S = 90 * 24 * 3600
EXTERNAL_MAX_AGE_S = 7 * 24 * 3600
"""How long a published event is kept for steps that begin to wait later, and its id remembered."""
OUTPUT_MAX_AGE_S = 7 * 24 * 3600.0
"""How long what runs have said is kept, by default: a week."""
OUTPUT_MSGS_MAX = 1_000_000
"""About a quarter of a gigabyte of usual chunks. Not ``max_bytes``: the server sets it aside in
advance, for each namespace."""
OUTPUT_MSGS_PER_STEP_MAX = 100_000
"""One step that talks without end drops its own oldest words, not those of others."""
OUTPUT_MSG_BYTES_MAX = 64 * 1024


def stream_configs(subjects: Subjects, replicas: int) -> list[dict[str, Any]]:
    """Return the configuration of every stream of a namespace."""
    common: dict[str, Any] = {
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": False,
        "duplicate_window": DUPLICATE_WINDOW_S * _SECOND_NS,
        "max_bytes": -1,
        "max_age": 0,
    }
    bucket = {**common, "max_msgs_per_subject": 1}
    return [
        {**bucket, "name": subjects.workflows_stream, "subjects": [subjects.all_workflows]},
        {**common, "name": subjects.events_stream, "subjects": [subjects.all_events]},
        {**bucket, "name": subjects.steps_stream, "subjects": [subjects.all_steps]},
        {**bucket, "name": subjects.runs_stream, "subjects": [subjects.all_runs]},
        {
            **bucket,
            "name": subjects.workers_stream,
            "subjects": [subjects.all_workers],
            "max_age": PRESENCE_MAX_AGE_S * _SECOND_NS,
        },
        {**bucket, "name": subjects.lanes_stream, "subjects": [subjects.all_lanes]},
        {**bucket, "name": subjects.waiters_stream, "subjects": [subjects.all_waiters]},
        {
            **common,
            "name": subjects.external_stream,
            "subjects": [subjects.all_external],
            "max_age": EXTERNAL_MAX_AGE_S * _SECOND_NS,
        },
        {**common, "name": subjects.collect_stream, "subjects": [subjects.all_collected]},
        {**bucket, "name": subjects.windows_stream, "subjects": [subjects.all_windows]},
        {**bucket, "name": subjects.limits_stream, "subjects": [subjects.all_limits]},
        {
            # Schedules refuse `discard new` and always allow rollups, so they live apart from
            # what clients and workers may write.
            **bucket,
            "name": subjects.timers_stream,
            "subjects": [subjects.all_timers, subjects.all_fired],
            "discard": "old",
            "allow_msg_schedules": True,
            "allow_rollup_hdrs": True,
        },
        {
            **common,
            "name": subjects.dead_stream,
            "subjects": [subjects.all_dead],
            "max_age": DEAD_LETTER_MAX_AGE_S * _SECOND_NS,
        },
        {
            "name": subjects.output_stream,
            "subjects": [subjects.all_output],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": replicas,
            "allow_direct": True,
        },
    ]


def output_bounds(max_age_s: float) -> dict[str, Any]:
    """Return the bounds of the output stream. They are set once; operators may change them."""
    return {
        "max_age": round(max_age_s * _SECOND_NS),
        "max_msgs": OUTPUT_MSGS_MAX,
        "max_msgs_per_subject": OUTPUT_MSGS_PER_STEP_MAX,
        "max_msg_size": OUTPUT_MSG_BYTES_MAX,
        "duplicate_window": DUPLICATE_WINDOW_S * _SECOND_NS,
    }


async def ensure_topology(
    js: JetStream,
    settings: Settings,
    *,
    partitions: int = 0,
    replicas: int = 1,
    event_ack_wait_s: float = EVENT_ACK_WAIT_S,
    output_max_age_s: float | None = None,
) -> Subjects:
    """Create what is missing of the namespace; return its subjects.

    ``partitions`` counts only when the namespace is made; 0 takes what exists, or 1. Raises
    ``UserError`` when it exists with another number. ``output_max_age_s`` sets how long the output
    stream keeps its chunks; None leaves it as it is, or a week.
    """
    if not 0 <= partitions <= PARTITIONS_MAX:
        raise UserError(
            f"partitions is {partitions}; it must be 0 to {PARTITIONS_MAX} (0: as they are)"
        )
    found = await find_namespace(js, settings)
    if found is not None and partitions not in (0, found.partitions):
        raise UserError(
            f"namespace {settings.namespace!r} was made with {found.partitions} partitions and "
            f"cannot be changed to {partitions}; start the engine without --partitions"
        )
    subjects = found or Subjects(settings.namespace, partitions or 1)
    bounds = output_bounds(OUTPUT_MAX_AGE_S if output_max_age_s is None else output_max_age_s)
    for config in stream_configs(subjects, replicas):
        is_output = config["name"] == subjects.output_stream
        await js.ensure_stream(config, initial=bounds if is_output else {})
    if output_max_age_s is not None:
        await js.edit_stream(subjects.output_stream, {"max_age": bounds["max_age"]})
    if found is None:
        record = msgspec.json.encode(NamespaceRecord(subjects.partitions))
        await js.compare_and_set(
            subjects.workflows_stream,
            subjects.settings(),
            record,
            expected=0,
            is_mine=lambda _: True,
        )
        # Two first engines may have asked for different partitions: what stands counts.
        subjects = await find_namespace(js, settings) or subjects
    for partition in range(subjects.partitions):
        name = subjects.engine_consumer(partition)
        events = consumer_config(subjects.events_of_partition(partition), event_ack_wait_s)
        await js.ensure_consumer(subjects.events_stream, name, events)
        fired = consumer_config(subjects.fired_of_partition(partition), event_ack_wait_s)
        await js.ensure_consumer(subjects.timers_stream, name, fired)
    name = subjects.triggers_consumer()
    changed = consumer_config(subjects.all_triggers, event_ack_wait_s)
    await js.ensure_consumer(subjects.workflows_stream, name, changed)
    firings = consumer_config(subjects.all_trigger_firings, event_ack_wait_s)
    await js.ensure_consumer(subjects.timers_stream, name, firings)
    name = subjects.collect_consumer()
    collected = consumer_config(subjects.all_collected, event_ack_wait_s)
    await js.ensure_consumer(subjects.collect_stream, name, collected)
    due = consumer_config(subjects.all_collect_firings, event_ack_wait_s)
    await js.ensure_consumer(subjects.timers_stream, name, due)
    published = consumer_config(subjects.all_external, event_ack_wait_s)
    await js.ensure_consumer(subjects.external_stream, subjects.correlator_consumer(), published)
    return subjects


def consumer_config(filter_subject: str, ack_wait_s: float) -> dict[str, Any]:
    """Return the configuration of one of the engines' shared consumers."""
    return {
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "filter_subject": filter_subject,
        "ack_wait": round(ack_wait_s * _SECOND_NS),
        "max_ack_pending": EVENT_ACK_PENDING_MAX,
        "max_deliver": -1,
        "max_waiting": 512,
    }
