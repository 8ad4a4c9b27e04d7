"""The files of examples/code_repair import each other by bare name, as a user's do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CODE_REPAIR = EXAMPLES / "code_repair"

if str(CODE_REPAIR) not in sys.path:
    sys.path.append(str(CODE_REPAIR))


@pytest.fixture(scope="session")
def model_environment() -> Iterator[dict[str, str]]:
    """A scripted model that answers at once; the variables that make the SDK ask it."""
    import scripted_model

    before, scripted_model.LATENCY_S = scripted_model.LATENCY_S, 0
    server = scripted_model.serve()
    url = f"http://127.0.0.1:{server.server_port}"
    yield {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": scripted_model.KEY}
    server.shutdown()
    server.server_close()
    scripted_model.LATENCY_S = before


@pytest.fixture
def scripted(model_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code of this test talk to the scripted model."""
    for name in [name for name in os.environ if name.startswith("ANTHROPIC_")]:
        monkeypatch.delenv(name)
    for name, value in model_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
