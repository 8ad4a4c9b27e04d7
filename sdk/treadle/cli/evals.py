"""``treadle eval``: an agent against cases and against recorded runs; no server is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import exits, output
from treadle.cli.options import Json

if TYPE_CHECKING:
    from treadle.worker.agent import Agent
    from treadle.worker.agent.evals import Case, CaseResult, Difference, Metrics

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Cases as .yaml, .yml or .json.", show_default=False),
]
AgentOption = Annotated[
    str,
    typer.Option("--agent", metavar="APP:NAME", help="app.py:agent, or package.module:agent."),
]


def evaluate(
    agent: AgentOption,
    files: Files = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="ID", help="Only this case; repeat it for more."),
    ] = None,
    cassette: Annotated[
        list[str] | None,
        typer.Option("--cassette", metavar="FILE", help="A recorded run; repeat it for more."),
    ] = None,
    json: Json = False,
) -> int:
    """Check what an agent does on its way, in a mocked world or over a recorded run.

    Tools are never called. Cases with a scripted model and cassettes need no tokens; a case
    without a script asks the agent's own model. Exits with 1 if a case fails, or if a recorded
    run would go another way now.
    """
    from treadle.sdk.errors import UserError

    if not files and not cassette:
        raise UserError(
            "there is nothing to evaluate. Name a file of cases, or a recorded run with --cassette."
        )
    check_extra()
    cases = _cases(files or [], case or [])
    loaded = _agent(agent)
    return asyncio.run(_evaluate(loaded, cases, cassette or [], as_json=json))


def check_extra() -> None:
    """Raise ``UserError`` unless what agents need is installed."""
    from treadle.sdk.errors import UserError

    try:
        import treadle.worker.agent.evals as _  # noqa: F401 — is it there?
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("treadle"):
            raise
        raise UserError(
            f"agents cannot be evaluated: the package {exc.name!r} is not installed, because it "
            "belongs to an optional extra. Install it: pip install 'treadle[agent]'."
        ) from exc


async def _evaluate(
    agent: Agent[Any], cases: list[Case], cassettes: list[str], *, as_json: bool
) -> int:
    try:
        same = [await _played(agent, each, as_json=as_json) for each in cassettes]
        passed = await _suite(agent, cases, as_json=as_json) if cases else True
    finally:
        await agent.close()
    return exits.OK if passed and all(same) else exits.RUN_FAILED


# ---------------------------------------------------------------- cases


def _cases(files: list[str], wanted: list[str]) -> list[Case]:
    from treadle.sdk.errors import UserError
    from treadle.worker.agent.evals import load_cases

    found: dict[str, Case] = {}
    for file in files:
        for case in load_cases(file):
            if case.case_id in found:
                raise UserError(
                    f"{file}: {case.case_id!r} is the id of a case in an earlier file, and results "
                    "go by the id. Choose another."
                )
            found[case.case_id] = case
    if unknown := [each for each in wanted if each not in found]:
        have = ", ".join(found) or "none"
        raise UserError(f"--case {unknown[0]!r} is no case of these files: {have}. Name one.")
    return [case for name, case in found.items() if not wanted or name in wanted]


async def _suite(agent: Agent[Any], cases: list[Case], *, as_json: bool) -> bool:
    from treadle.worker.agent.evals import run_suite

    def emit(result: CaseResult) -> None:
        if as_json:
            output.emit(_plain(result))

    suite = await run_suite(agent, cases, on_result=emit)
    if as_json:
        import msgspec

        output.emit({"metrics": msgspec.to_builtins(suite.metrics)})
        return suite.passed
    output.table(
        ("CASE", "RESULT", "STOP", "TURNS", "CALLS", "TOKENS", "REPLAYS"),
        [_row(result) for result in suite.results],
    )
    for result in suite.results:
        for failure in result.failures:
            output.say(f"! {result.case.case_id}: {failure}", "yellow")
    for line in _lines(suite.metrics):
        output.say(line)
    return suite.passed


def _row(result: CaseResult) -> tuple[str, ...]:
    used = result.used
    return (
        result.case.case_id,
        "ok" if result.passed else "fail",
        result.stop_reason or "-",
        str(len(result.trajectory.turns)),
        str(used.tool_calls),
        str(used.usage.context_tokens),
        f"{result.replays_ok}/{result.replays}",
    )


def _plain(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.case.case_id,
        "passed": result.passed,
        "failures": result.failures,
        "stop_reason": result.stop_reason,
        "output": result.trajectory.output,
        "turns": len(result.trajectory.turns),
        "tool_calls": result.used.tool_calls,
        "tokens": result.used.usage.context_tokens,
        "cost_usd": result.used.cost_micro_usd / 1_000_000,
        "duration_ms": result.duration_ms,
        "replays": result.replays,
        "replays_ok": result.replays_ok,
        "trace": result.trajectory.trace,
    }


def _lines(metrics: Metrics) -> list[str]:
    rates = {
        "completed": metrics.completion_rate,
        "stop reason correct": metrics.correct_stop_rate,
        "escalation correct": metrics.escalation_accuracy,
        "replays successful": metrics.replay_success,
        "invalid actions": metrics.invalid_action_rate,
        "repeated actions": metrics.repeated_action_rate,
    }
    shown = [f"{name} {rate:.0%}" for name, rate in rates.items() if rate is not None]
    latency = "" if metrics.latency_ms is None else f", {metrics.latency_ms:.0f} ms a case"
    return [
        f"{metrics.passed} of {metrics.cases} passed",
        ", ".join(shown),
        f"{metrics.tokens} tokens, {metrics.cost_usd:.4f} USD, {metrics.tool_calls} tool calls"
        f"{latency}",
    ]


# ---------------------------------------------------------------- cassettes


async def _played(agent: Agent[Any], file: str, *, as_json: bool) -> bool:
    from treadle.worker.agent.evals import Cassette, diff, replay

    cassette = Cassette.load(file)
    differences = diff(cassette, await replay(agent, cassette))
    if as_json:
        import msgspec

        told = {"cassette": file, "same": not differences}
        output.emit({**told, "differences": msgspec.to_builtins(differences)})
    else:
        _say_differences(file, differences)
    return not differences


def _say_differences(file: str, differences: tuple[Difference, ...]) -> None:
    if not differences:
        output.say(f"{file}: goes the same way", "green")
        return
    count = len(differences)
    output.say(f"{file}: {count} difference{'' if count == 1 else 's'}, recorded -> now", "yellow")
    for each in differences:
        output.say(f"  {each}")


# ---------------------------------------------------------------- the agent


def _agent(target: str) -> Agent[Any]:
    """Return the agent that the text names; raise ``UserError`` if it names none."""
    from treadle.cli.app import names_in
    from treadle.sdk.errors import UserError
    from treadle.worker.agent import Agent

    names, wanted = names_in(target)
    agents: dict[str, Agent[Any]] = {
        name: value for name, value in names.items() if isinstance(value, Agent)
    }
    if wanted:
        agents = {name: agent for name, agent in agents.items() if name == wanted}
    if len(agents) != 1:
        have = ", ".join(agents) or "none"
        what = f"{wanted!r} of it is no Agent" if wanted else f"of Agents it has: {have}"
        raise UserError(
            f"--agent {target}: one Agent is wanted, and {what}. Name the variable that holds it, "
            "such as app.py:agent."
        )
    return next(iter(agents.values()))
