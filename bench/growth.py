"""How the cost of an agent's iteration develops while its conversation grows.

    this process   FakeAnthropic, the client, the samples
    worker         bench/agent_app.py, replaced by a cold one at the end

The model reads one document each turn, then asks people twice: the first answer is taken up by
the worker that has served the run, the second by one that has just started.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import agent_app
from bench.processes import Processes, cpu_s
from treadle.sdk import Client
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client import RunHandle
from treadle.sdk.subjects import Subjects
from treadle.worker.agent.core.entries import Answered, Entry
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn
from treadle.worker.execution import Record

STEP = "agent"
WAIT_S = 120.0
"""Bound on any wait for the run."""
FOLDS = 5
"""A fold is timed so often; the median counts."""
_SUMMARY = "## Goal\nRead every document.\n## Done\nThe documents so far were read.\n"
_record = msgspec.json.Decoder(Record).decode
_entries = msgspec.json.Decoder(list[Entry]).decode


class Sample(NamedTuple):
    """What stood when so many iterations were committed."""

    iterations: int
    bytes: dict[str, int]
    """Stored in each stream, now."""
    written: dict[str, int]
    """Messages ever written to each stream."""
    register_bytes: int
    worker_cpu_s: float


class Reading:
    """The model: reads documents, asks twice, and is done."""

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._turns = 0
        self._before: RecordedRequest | None = None

    def __call__(self, request: RecordedRequest) -> Turn:
        """Answer a request; the one before is let go, for they would fill the memory."""
        if self._before is not None:
            self._before.raw, self._before.body = b"", {}
        self._before = request
        if not request.tool_names:
            return turn(text(_SUMMARY))
        number, self._turns = self._turns, self._turns + 1
        if number < self._iterations:
            name = f"read_{number % agent_app.READERS}"
            return turn(tool_use(name, {"number": number}, id=f"call_{number}"))
        if number < self._iterations + 2:
            return turn(tool_use("ask_human", {"question": "Go on?"}, id=f"call_{number}"))
        return turn(text("All is read."))


async def measure(
    processes: Processes, client: Client, js: JetStream, workflow: str, iterations: int, window: int
) -> dict[str, Any]:
    """Run one agent for so many iterations; return the curves, by windows of iterations.

    ``workflow`` has the name of the task type that serves its one step.
    """
    subjects = Subjects()
    with FakeAnthropic(Reading(iterations), context_window=agent_app.ROOMY) as fake:
        app = str(Path(__file__).with_name("agent_app.py"))
        processes.spawn("agent-worker", "worker", app, env=fake.env)
        try:
            run = await client.start(workflow, "Read every document.")
            samples = await _samples(processes, js, subjects, run, workflow, iterations, window)
            warm_ms = await _answered(run, fake, iterations)
            processes.end("agent-worker")
            processes.spawn("agent-worker", "worker", app, env=fake.env)
            cold_ms = await _answered(run, fake, iterations + 1)
            await asyncio.wait_for(run.result(), WAIT_S)
            assert not fake.failures, fake.failures
        finally:
            processes.end("agent-worker")
    records, read_ms = await _journal(js, subjects, run.id)
    return {
        "iterations": iterations,
        "window": window,
        **_stored(samples),
        **_journalled(records, iterations, window),
        "journal_records": len(records),
        "journal_bytes": sum(len(record.body) for record in records),
        "read_journal_ms": round(read_ms, 1),
        "fold_ms": round(_fold_ms(records), 1),
        "warm_answer_to_request_ms": round(warm_ms),
        "cold_answer_to_request_ms": round(cold_ms),
    }


# ------------------------------------------------------------------ while it runs


async def _samples(
    processes: Processes,
    js: JetStream,
    subjects: Subjects,
    run: RunHandle[Any],
    workflow: str,
    iterations: int,
    window: int,
) -> list[Sample]:
    async def sample(done: int) -> Sample:
        streams = {
            "events": subjects.events_stream,
            "steps": subjects.steps_stream,
            "runs": subjects.runs_stream,
            "timers": subjects.timers_stream,
        }
        states = {
            name: (await js.api(f"STREAM.INFO.{stream}"))["state"]
            for name, stream in streams.items()
        }
        register = await js.last(subjects.steps_stream, subjects.register(run.id, STEP, workflow))
        return Sample(
            done,
            {name: int(state["bytes"]) for name, state in states.items()},
            {name: int(state["last_seq"]) for name, state in states.items()},
            len(register.data) if register is not None else 0,
            cpu_s(processes.pids()["agent-worker"]),
        )

    samples = [await sample(0)]
    async with asyncio.timeout(WAIT_S + iterations):
        while (done := (await run.get()).step(STEP).iterations) < iterations:
            if done - samples[-1].iterations >= window:
                samples.append(await sample(done))
            await asyncio.sleep(0.01)
        samples.append(await sample(done))
        while (await run.get()).status != "parked":
            await asyncio.sleep(0.01)
    return samples


async def _answered(run: RunHandle[Any], fake: FakeAnthropic, turns: int) -> float:
    """Answer the question of that turn; return the time to the next request, in ms."""
    async with asyncio.timeout(WAIT_S):
        while (await run.get()).status != "parked":
            await asyncio.sleep(0.01)
        count = fake.count
        reply = {"call_id": f"call_{turns}", "verdict": "answer", "text": "Yes."}
        began = time.monotonic()
        await run.send(STEP, reply, kind="reply", id=f"reply-{turns}")
        request = await asyncio.to_thread(fake.wait_arrived, count + 1, WAIT_S)
    return (request.received_at - began) * 1000


# ------------------------------------------------------------------ what is stored


def _stored(samples: Sequence[Sample]) -> dict[str, Any]:
    pairs = list(itertools.pairwise(samples))

    def per_iteration(of: str, name: str) -> list[float]:
        return [
            round(
                (getattr(after, of)[name] - getattr(before, of)[name])
                / (after.iterations - before.iterations),
                1,
            )
            for before, after in pairs
        ]

    names = samples[0].bytes
    return {
        "until_iteration": [after.iterations for _, after in pairs],
        "stored_bytes_per_iteration": {name: per_iteration("bytes", name) for name in names},
        "written_messages_per_iteration": {name: per_iteration("written", name) for name in names},
        "register_bytes": [sample.register_bytes for sample in samples],
        "worker_cpu_ms_per_iteration": [
            round(
                1000
                * (after.worker_cpu_s - before.worker_cpu_s)
                / (after.iterations - before.iterations),
                1,
            )
            for before, after in pairs
        ],
    }


def _journalled(records: Sequence[Record], iterations: int, window: int) -> dict[str, Any]:
    """Return what the journal says of each window: its size, and where the time went."""
    found: dict[str, list[float]] = {
        name: []
        for name in (
            "context_tokens",
            "journal_bytes_per_iteration",
            "ms_per_iteration",
            "model_ms_per_iteration",
        )
    }
    for first in range(0, iterations, window):
        of_window = [r for r in records if first <= r.iteration < first + window]
        entries = list(itertools.chain.from_iterable(_entries(r.body) for r in of_window))
        answers = [entry for entry in entries if isinstance(entry, Answered)]
        last = answers[-1].usage
        size = sum(len(record.body) for record in of_window)
        times = [entry.at_ms for entry in entries]
        found["context_tokens"].append(last.context_tokens)
        found["journal_bytes_per_iteration"].append(round(size / window, 1))
        found["ms_per_iteration"].append(round((times[-1] - times[0]) / window, 1))
        model_ms = sum(answer.duration_ms for answer in answers)
        found["model_ms_per_iteration"].append(round(model_ms / window, 1))
    return found


# ------------------------------------------------------------------ a cold worker


async def _journal(js: JetStream, subjects: Subjects, run: str) -> tuple[list[Record], float]:
    """Return the run's journal, and how long it takes to read it, in ms."""
    began = time.perf_counter()
    records = [
        _record(stored.data)
        async for stored in js.read(subjects.steps_stream, subjects.records(run, STEP))
    ]
    return records, (time.perf_counter() - began) * 1000


def _fold_ms(records: Sequence[Record]) -> float:
    def timed() -> Iterator[float]:
        for _ in range(FOLDS):
            began = time.perf_counter()
            state = State()
            for record in records:
                state = fold(state, _entries(record.body))
            yield (time.perf_counter() - began) * 1000

    return sorted(timed())[FOLDS // 2]
