"""A worker process that serves a plan, and is killed at a failpoint.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL.
"""

from __future__ import annotations

import logging

from tests.agent.plan.stage import plan_workflow

from treadle.sdk.settings import Settings
from treadle.worker import Worker, serve
from treadle.worker.agent.models.anthropic import AnthropicModel


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    worker = Worker()
    plan_workflow(AnthropicModel("claude-test", api_key="none")).register(worker)
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
