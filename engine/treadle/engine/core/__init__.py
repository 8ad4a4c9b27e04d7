"""The pure core: two doors, and what has to be done about the state behind them.

``advance`` moves a step's register, ``apply`` moves a run's document, ``effects`` says what a
state asks of the world. Nothing here does I/O, reads a clock or draws a random number.
Read ``advance.py`` first.
"""

from treadle.engine.core.advance import Placed, RegisterEvent, advance, is_live
from treadle.engine.core.apply import RunEvent, apply, forget_applied, request
from treadle.engine.core.facts import ChildStarted, StepDecided, StepEnded, StepParked, StepResumed
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan

__all__ = [
    "ChildStarted",
    "Moment",
    "Placed",
    "Plan",
    "RegisterEvent",
    "RunEvent",
    "StepDecided",
    "StepEnded",
    "StepParked",
    "StepResumed",
    "advance",
    "apply",
    "forget_applied",
    "is_live",
    "request",
]
