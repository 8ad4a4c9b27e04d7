"""Both type checkers accept the right uses of the builder and refuse the wrong ones.
Method: run them on a file in which each wrong use is marked; an idle mark is an error too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("builder_uses.py")

MYPY = ["-m", "mypy", "--config-file", "pyproject.toml", "--no-incremental"]
PYRIGHT = ["-m", "pyright", "--pythonpath", sys.executable]


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
@pytest.mark.timeout(180)  # A cold start of a checker on a busy machine.
def test_wrong_uses_are_errors_and_right_ones_are_not(checker: list[str]) -> None:
    command = [sys.executable, *checker, str(USES)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
