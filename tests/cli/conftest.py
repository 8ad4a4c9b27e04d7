"""The command: through its entry point in this process, and as a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from treadle.cli.main import main
from treadle.sdk.client import requests
from treadle.sdk.settings import Settings


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output as JSON lines."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """Its output as the only JSON line."""
        (only,) = self.lines
        return only


Run = Callable[..., Done]


class Terminal(io.TextIOWrapper):
    """Standard input at which somebody types."""

    def isatty(self) -> bool:
        return True


def environment(settings: Settings | None) -> dict[str, str]:
    """The environment of a command: nothing of ours but the server and the namespace."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}
    if settings is not None:
        env |= {"TREADLE_NATS_URL": settings.url, "TREADLE_NAMESPACE": settings.namespace}
    return env


@pytest.fixture
def treadle(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """``treadle("run", "list", code=0)``: call the entry point, in an empty directory."""
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(requests, "UNKNOWN_LOOKS_S", (0.001,))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0, stdin: str = "", terminal: bool = False) -> Done:
        stream = Terminal if terminal else io.TextIOWrapper
        monkeypatch.setattr("sys.stdin", stream(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        done = Done(int(ended.value.code or 0), *capsys.readouterr())
        assert done.code == code, done
        return done

    return run


@pytest.fixture
def treadle_process(settings: Settings, tmp_path: Path) -> Run:
    """The same, as a process."""

    def run(*arguments: str, code: int = 0) -> Done:
        process = subprocess.run(
            [sys.executable, "-m", "treadle.cli", *arguments],
            env=environment(settings),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
        done = Done(process.returncode, process.stdout, process.stderr)
        assert done.code == code and "Traceback" not in done.err, done
        return done

    return run
