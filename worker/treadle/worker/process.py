"""A worker as a whole process: its event loop, its signals, its end.

The first SIGTERM or SIGINT drains, the second leaves at once. A handler's own task that raises
``SystemExit`` would end an ordinary event loop; here the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from treadle.sdk.settings import Settings
from treadle.worker.worker import Worker

_log = logging.getLogger("treadle.worker")

CLEANUP_S = 1.0
"""What leftover tasks of handlers get to end; then the process ends without them."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(worker: Worker, settings: Settings | None = None) -> None:
    """Run the worker until a signal ends it. Call it in the main thread.

    Raises what ``Worker.run`` raises.
    """
    loop = _new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        run = loop.create_task(worker.run(settings))
        _install_signals(loop, worker)
        _run_to_end(loop, run)
        is_clean = _clean_up(loop) and not worker.abandoned
    finally:
        asyncio.set_event_loop(None)
    if not is_clean:
        # A handler that nothing stops would hold the interpreter's exit for ever.
        _log.warning("worker.left-behind abandoned=%d", worker.abandoned)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    loop.close()
    run.result()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Not made for this platform.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _install_signals(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    seen: list[signal.Signals] = []

    def on_signal(received: signal.Signals) -> None:
        if seen:
            _log.warning("worker.leaving-at-once signal=%s", received.name)
            logging.shutdown()
            os._exit(128 + received)
        seen.append(received)
        _log.info("worker.draining signal=%s", received.name)
        worker.stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


def _run_to_end(loop: asyncio.AbstractEventLoop, run: asyncio.Task[None]) -> None:
    while not run.done():
        try:
            loop.run_until_complete(run)
        except (SystemExit, KeyboardInterrupt) as exc:
            if run.done():
                return
            _log.error(
                "worker.exit-refused: a task that a handler started raised %s. The worker goes "
                "on; end it with a signal",
                type(exc).__name__,
            )
        except Exception:  # noqa: BLE001 — the caller reads it from the task
            return


def _clean_up(loop: asyncio.AbstractEventLoop) -> bool:
    """End what handlers left running; False if something does not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=CLEANUP_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    return not left
