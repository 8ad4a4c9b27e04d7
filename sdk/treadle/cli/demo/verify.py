"""The demo's own judgement of the repaired package: it believes no report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 60


def verify(files: Mapping[str, str], package: Path, directory: Path) -> tuple[bool, str]:
    """Run the package's original tests on the repaired files; return success and the last line."""
    for name, text in files.items():
        path = (directory / name).resolve()
        if not path.is_relative_to(directory.resolve()):
            return False, f"the result holds {name!r}, which lies outside the package"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for test in (package / "tests").glob("*.py"):
        (directory / "tests" / test.name).write_bytes(test.read_bytes())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # The package needs no plugin, and one that is broken elsewhere should not fail it.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"the tests did not end within {_TIMEOUT_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"pytest ended with {done.returncode}"
