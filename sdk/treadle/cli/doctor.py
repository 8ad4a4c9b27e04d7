"""``treadle doctor``: run the checks, print them, and choose the exit code."""

from __future__ import annotations

import asyncio

from treadle.cli import exits, output
from treadle.cli.check import Check
from treadle.cli.doctor_checks import examine
from treadle.sdk.settings import Settings


def run_doctor(
    url: str | None, namespace: str | None, monitor: str | None, *, as_json: bool
) -> int:
    """Examine the server and the namespace; return the exit code."""
    settings = Settings.from_env(url=url, namespace=namespace)
    checks = asyncio.run(examine(settings, monitor))
    failed = [check for check in checks if check.status == "fail"]
    if as_json:
        output.emit({"ok": not failed, "checks": checks})
    else:
        for check in checks:
            _print(check)
    if any(check.name == "server" for check in failed):
        return exits.SERVER
    return exits.CHECK_FAILED if failed else exits.OK


def _print(check: Check) -> None:
    output.say(f"{check.status:<4}  {check.name:<10} {check.text}", output.STYLES[check.status])
    if check.remedy:
        output.say(f"{'':<17}→ {check.remedy}")
