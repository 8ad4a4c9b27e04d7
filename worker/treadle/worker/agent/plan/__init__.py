"""The plan workflow: explore, plan, implement and review as a ready-made workflow.

    plan = PlanWorkflow("change", explorer=..., planner=..., implementer=..., reviewer=...)
    plan.register(worker)
    client.start(plan.workflow, "Add a flag --json.")

Read next: ``workflow`` (the steps), ``phases`` (what follows what), ``verdict`` (the gate).
"""

from treadle.worker.agent.plan.phases import PlanResult
from treadle.worker.agent.plan.prompts import Prompts
from treadle.worker.agent.plan.verdict import Verdict, parse_verdict
from treadle.worker.agent.plan.workflow import PlanWorkflow, StepOptions

__all__ = ["PlanResult", "PlanWorkflow", "Prompts", "StepOptions", "Verdict", "parse_verdict"]
