"""Testing workflows: in memory with virtual time, or against a real server of one's own.

``simulate`` needs nothing but the workflow and its worker. ``local`` starts a nats-server, an
engine and workers in this process and gives a client.
"""

from treadle.sdk.testing.local import local
from treadle.sdk.testing.simulation import (
    Event,
    Message,
    Resume,
    Signal,
    SimulatedRun,
    SimulatedStep,
    simulate,
)

__all__ = [
    "Event",
    "Message",
    "Resume",
    "Signal",
    "SimulatedRun",
    "SimulatedStep",
    "local",
    "simulate",
]
