"""The page about evaluations: its case and its program are run as they stand.

Method: blocks of the document are taken out and executed; its tables are compared with the code.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import get_args

from treadle.worker.agent.evals import parse_cases, run_case
from treadle.worker.agent.evals.case import MockStatus
from treadle.worker.agent.evals.trajectory import TRACE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "evaluations.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_case_of_the_page_passes_with_the_agent_of_the_examples() -> None:
    path = ROOT / "examples" / "evals" / "refund_agent.py"
    spec = importlib.util.spec_from_file_location("refund_agent_of_the_page", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (case,) = parse_cases(_block("yaml"))
    result = asyncio.run(run_case(module.agent, case))
    assert result.passed, result.failures


def test_the_program_of_the_page_runs() -> None:
    exec(compile(_block("python"), "evaluations.md", "exec"), {"__name__": "page"})


def test_the_page_names_every_status_and_every_word_of_a_trace() -> None:
    missing = [word for word in (*get_args(MockStatus), *TRACE) if f"`{word}`" not in PAGE]
    assert missing == []
