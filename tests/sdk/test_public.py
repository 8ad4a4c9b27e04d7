"""What `import treadle.sdk` offers: few names, all of them meant, nothing heavy behind them.
Method: compare __all__ with the module; import it in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import treadle.sdk

NAMES_MAX = 25


def test_the_first_hour_needs_fewer_than_25_names() -> None:
    assert len(treadle.sdk.__all__) < NAMES_MAX
    assert sorted(set(treadle.sdk.__all__)) == treadle.sdk.__all__


def test_all_is_exactly_what_a_star_import_and_a_reader_find() -> None:
    found = {
        name
        for name, value in vars(treadle.sdk).items()
        if not name.startswith("_") and type(value).__name__ != "module"
    }
    assert found == set(treadle.sdk.__all__)


def test_importing_the_sdk_imports_neither_pydantic_nor_engine_nor_worker() -> None:
    program = (
        "import sys, treadle.sdk;"
        "print([m for m in ('pydantic', 'treadle.engine', 'treadle.worker') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found.stderr
