"""These tests are collected by `make backends` alone, which names the backends by TRACE_BACKENDS.

TRACE_BACKENDS_VENV is the folder of their environments, each with the name of its backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.backend import Backend
from tests.backends.mlflow import MLflow
from tests.backends.phoenix import Phoenix

WANTED = os.environ.get("TRACE_BACKENDS", "").split()
collect_ignore_glob = [] if WANTED else ["test_*.py"]
BACKENDS = {"phoenix": Phoenix, "mlflow": MLflow}


@pytest.fixture(scope="session", params=WANTED)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """One of the backends, as it comes from its package."""
    name: str = request.param
    executable = Path(os.environ["TRACE_BACKENDS_VENV"]).resolve() / name / "bin" / name
    made = BACKENDS[name](executable, tmp_path_factory.mktemp(name) / "data")
    try:
        made.wait()
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _sending(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what exports send to the backend."""
    for name, value in backend.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
