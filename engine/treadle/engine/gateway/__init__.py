"""The HTTP gateway: webhooks and requests that start runs (docs/http.md). Needs the extra ``http``.

    POST /hooks/<name>          a delivery ──checked, stored──> 202 with the run
    POST /api/<path>            a request ──stored──> wait ──> the run's response
    GET  /api/<path>/runs/<id>  the same response, later
    GET  /healthz               the gateway is up, and the server answers

A gateway is a client: any number may run, each asks what stands, and none remembers a request.
"""

from treadle.engine.gateway.app import Gateway

__all__ = ["Gateway"]
