"""A request that the API would not answer, and the shape of every error."""

from __future__ import annotations

from treadle.worker.agent.testing.wire import Json

KIND_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type that goes with a status."""

STATUS_OF_KIND = {kind: status for status, kind in KIND_OF_STATUS.items()}


class Refused(Exception):
    """The request breaks a rule of the API; ``status`` and ``kind`` say how that is answered."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = KIND_OF_STATUS[status]


def error_body(kind: str, message: str, request_id: str) -> Json:
    """Return the body of an error, the same for an answer and for ``event: error``."""
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }
