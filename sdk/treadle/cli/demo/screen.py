"""What the demo shows: the iterations as they happen, then a table, the diff and the tests."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from treadle.cli import output
from treadle.cli.demo.story import Execution, Kill, Story
from treadle.cli.demo.summary import Summary, describe_kill

_STYLES = {"committed": "green", "killed": "bold red", "saved": "cyan"}


class Screen:
    """Follows the story: a table that moves on a terminal, lines elsewhere."""

    def __init__(self, console: Console, story: Story) -> None:
        self._console = console
        self._story = story
        self._hint = ""
        self._told: set[tuple[int, str]] = set()
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=12, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._hint = ""
            self.refresh()
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print one line above what moves."""
        self._console.print(output.visible(text), style=style, highlight=False)

    def hint(self, text: str) -> None:
        """Set the line below the table."""
        self._hint = text

    def refresh(self) -> None:
        """Show the story as it stands."""
        if self._live is not None:
            self._live.update(_progress(self._story, self._hint))
            return
        for number, execution in enumerate(self._story.executions):
            # ``testing`` is shown as ``tested`` soon after: one line for both.
            if execution.phase in ("asking", "testing") or (number, execution.phase) in self._told:
                continue
            self._told.add((number, execution.phase))
            if execution.phase in ("committed", "killed"):
                self._console.print(output.one_line(_line(execution)), highlight=False)


def _progress(story: Story, hint: str) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("iteration", "attempt", "worker", "edit", "tests", "state"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for execution in story.executions:
        table.add_row(
            str(execution.iteration),
            str(execution.attempt),
            str(execution.pid),
            output.one_line(execution.edit),
            _tests(execution),
            Text(_state(execution), style=_STYLES.get(execution.phase, "yellow")),
        )
    return Group(table, Text(hint, style="dim")) if hint else table


def _line(execution: Execution) -> str:
    tests = _tests(execution)
    return (
        f"iteration {execution.iteration}, attempt {execution.attempt}, worker {execution.pid}: "
        f"{execution.edit or 'no edit'}{'; ' + tests if tests else ''}; {_state(execution)}"
    )


def _tests(execution: Execution) -> str:
    if not execution.passed and not execution.failed:
        return ""
    return f"{execution.passed} pass, {execution.failed} fail"


def _state(execution: Execution) -> str:
    match execution.phase:
        case "asking":
            return f"asks the model ({execution.model_calls})"
        case "testing":
            return "runs pytest"
        case "tested":
            return "saves its checkpoint"
        case "saved":
            return "checkpoint saved"
        case "committed":
            return "committed"
        case "killed":
            return "killed -9"


def show_summary(console: Console, summary: Summary) -> None:
    """Print the table, the diff and the result of the tests."""
    console.print()
    diff = output.visible(summary.diff)
    console.print(Syntax(diff, "diff", background_color="default", word_wrap=True))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _rows(summary):
        table.add_row(name, output.one_line(value))
    console.print(table)
    style = "bold green" if summary.repaired else "bold red"
    console.print(Text(output.one_line(summary.verdict), style=style))


def show_next(console: Console, examples: Path) -> None:
    """Say what to run next: the demo's own server and namespace are gone by now."""
    app = examples / "agent_loop.py"
    if app.is_relative_to(Path.cwd()):
        app = app.relative_to(Path.cwd())
    for line in (
        f"next:  treadle dev {shlex.quote(str(app))}",
        "       treadle run start guess-number --input 617 --watch    (in a second terminal)",
        "       treadle run trace RUN",
    ):
        console.print(Text(line), soft_wrap=True)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    rows = [
        ("iterations", f"{summary.iterations} committed, in order, each once"),
        ("attempts", f"{summary.executions} executions"),
    ]
    kills: list[Kill] = summary.kills
    for kill in kills:
        rows += describe_kill(kill)
    if not kills:
        rows.append(("killed", summary.why_no_kill))
    rows += [
        ("model calls", f"{summary.model_calls}, by {summary.model}"),
        ("run", f"{summary.run}, {summary.status} after {summary.seconds:.1f} s"),
    ]
    return rows
