"""Testing workflows: in memory with virtual time, or against a real server of one's own.

``simulate`` needs nothing but the workflow and its worker. ``local`` starts a nats-server, an
engine and workers in this process and gives a client.
"""

from treadle.sdk.effects_seen import happened
from treadle.sdk.testing.crashing import CrashesShow, CrashReport, crash_everywhere
from treadle.sdk.testing.local import local
from treadle.sdk.testing.simulation import (
    Event,
    Message,
    Resume,
    Signal,
    SimulatedRun,
    SimulatedStep,
    Version,
    simulate,
)

__all__ = [
    "CrashReport",
    "CrashesShow",
    "Event",
    "Message",
    "Resume",
    "Signal",
    "SimulatedRun",
    "SimulatedStep",
    "Version",
    "crash_everywhere",
    "happened",
    "local",
    "simulate",
]
