"""``treadle explain``: why a run is not getting on, and the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli import exits, output
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client, Explanation

_STYLES = {"healthy": "green", "stuck": "bold yellow", "ended": ""}


def explain(run: RunId, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Say why a run is not getting on, or what it does, and the next command.

    Exits with 9 if the run goes on only when somebody acts.
    """
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: _explain(client, run, as_json=json))


async def _explain(client: Client, run_id: str, *, as_json: bool) -> int:
    explanation = await client.explain(run_id)
    if as_json:
        output.emit(explanation)
    else:
        _show(explanation)
    return exits.STUCK if explanation.is_stuck else exits.OK


def _show(explanation: Explanation) -> None:
    output.say(output.one_line(str(explanation)), _STYLES[explanation.state])
    if explanation.main.command:
        output.say(f"    {output.command(explanation.main.command)}")
    for reason in explanation.reasons[1:]:
        output.say(f"also: {output.one_line(reason.text)}")
        if reason.command:
            output.say(f"    {output.command(reason.command)}")
