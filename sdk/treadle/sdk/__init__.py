"""What authors of workflows and clients import.

Everything else of this package is for Treadle itself and may change in any release;
``treadle.sdk.testing`` runs workflows in memory.
"""

from treadle.sdk.builder import Workflow
from treadle.sdk.building import StepRef
from treadle.sdk.client import Client, RunHandle
from treadle.sdk.definition import Retry, WorkflowDefinition
from treadle.sdk.document import load_definition
from treadle.sdk.errors import (
    HandlerError,
    InvalidDefinition,
    InvalidId,
    InvalidPayload,
    NonRetryable,
    Retryable,
    RunCancelled,
    RunConflict,
    RunFailed,
    ServerError,
    ServerUnavailable,
    ServerUnsuitable,
    TreadleError,
    UnknownRun,
    UnknownWorkflow,
    UserError,
)
from treadle.sdk.spending import Spent

__all__ = [
    "Client",
    "HandlerError",
    "InvalidDefinition",
    "InvalidId",
    "InvalidPayload",
    "NonRetryable",
    "Retry",
    "Retryable",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunHandle",
    "ServerError",
    "ServerUnavailable",
    "ServerUnsuitable",
    "Spent",
    "StepRef",
    "TreadleError",
    "UnknownRun",
    "UnknownWorkflow",
    "UserError",
    "Workflow",
    "WorkflowDefinition",
    "load_definition",
]
