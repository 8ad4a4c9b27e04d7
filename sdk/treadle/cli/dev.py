"""``treadle dev``: a server, an engine and the worker of a file, while one works on it.

    treadle dev ── nats-server              store in .treadle/nats, on this machine only
                ├─ treadle engine           kept alive
                ├─ treadle worker app.py    kept alive; a new one at each change of its code
                └─ treadle http             kept alive, if it is asked for

All of them are processes of their own, ended by their ids when this one ends, however it ends.
``.treadle/dev.json`` tells every other command, in this directory or one below it, where the
server is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from treadle.cli import app, dev_file, exits, lineage, output
from treadle.cli.children import GRACE_S, Child
from treadle.cli.dev_file import DevFile
from treadle.cli.reload import changes
from treadle.sdk.client import Client
from treadle.sdk.errors import ServerError, ServerUnavailable, UserError
from treadle.sdk.server import NatsServer, Sync
from treadle.sdk.settings import DEFAULT_URL, DEV_FILE, Settings

PORT = int(DEFAULT_URL.rpartition(":")[2])
SETUP_S = 30.0
"""For the engine to set up a namespace on a machine that is busy."""
_TICK_S = 0.1
_SERVER_CHECK_S = 1.0
_SYNC_TEXT = {
    "always": "acknowledged writes are on the disk",
    "1s": "kill -9 loses nothing, a power loss up to 1 s; `--sync always` loses nothing",
    "2m": "kill -9 loses nothing, a power loss up to 2 min; `--sync always` loses nothing",
}


def run_dev(
    target: str, *, port: int | None, sync: str, http_port: int | None, as_json: bool
) -> int:
    """Run until Ctrl-C or SIGTERM."""
    root = Path.cwd()
    file = app.file_of(target)
    if file is not None and not file.is_file():
        raise UserError(f"{target} is not a file in {root}. Create it, or name another.")
    running = dev_file.read(root)
    if running is not None:
        raise UserError(
            f"`treadle dev` already runs in {root} (pid {running.pid}), and one store serves one "
            "server. Stop it, or work in another directory."
        )
    server = _start_server(root, port, sync)
    try:
        dev = _Dev(root, target, file, server, http_port, as_json=as_json)
        dev.greet(sync)
        dev_file.write(root, DevFile(server.url, os.getpid(), server.http_url))
        asyncio.run(dev.run())
    finally:
        dev_file.remove(root)
        server.stop()
    return exits.OK


def _start_server(root: Path, port: int | None, sync: str) -> NatsServer:
    # From the main thread: on Linux the server ends with the thread that started it.
    how: Sync = "always" if sync == "always" else "1s" if sync == "1s" else "2m"
    store = root / DEV_FILE.parent / "nats"
    try:
        return NatsServer.start(store, port=port or PORT, sync=how, http=True)
    except ServerUnavailable:
        if port is not None:
            raise
    # The usual port is taken; other commands of this directory find any other one as well.
    return NatsServer.start(store, sync=how, http=True)


class _Dev:
    """The processes, and who watches over them."""

    def __init__(
        self,
        root: Path,
        target: str,
        file: Path | None,
        server: NatsServer,
        http_port: int | None,
        *,
        as_json: bool,
    ) -> None:
        self._target = target
        self._watched = file.parent if file is not None else root
        self._server = server
        self._as_json = as_json
        self._sources = root / DEV_FILE.parent / "sources"
        self._sources.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "TREADLE_NATS_URL": server.url,
            "PYTHONUNBUFFERED": "1",
            lineage.PID: str(os.getpid()),
        }
        cli = ["-m", "treadle.cli"]
        self._engine = Child("engine", [*cli, "engine"], environment, self._tell)
        self._worker = Child(
            "worker",
            [*cli, "worker", target],
            {**environment, lineage.SOURCES: str(self._sources)},
            self._tell,
        )
        http = [*cli, "http", "--port", str(http_port)]
        self._http = Child("http", http, environment, self._tell) if http_port is not None else None

    def greet(self, sync: str) -> None:
        """Say where everything is, and what a crash can cost."""
        if self._as_json:
            return
        store = os.path.relpath(self._server.store_dir)
        output.say(f"server  {self._server.url}, in {store}; sync {sync}: {_SYNC_TEXT[sync]}")

    async def run(self) -> None:
        """Run all of it until a signal comes."""
        stop = asyncio.Event()
        self._on_signals(stop)
        jobs = [
            asyncio.create_task(job)
            for job in (self._engine.run(), self._serve(), self._reload(), self._keep_server())
        ]
        for job in jobs:
            job.add_done_callback(lambda _: stop.set())
        await stop.wait()
        ended = [job for job in jobs if job.done()]
        self._tell(
            "dev",
            f"stopping; waiting up to {GRACE_S:g} s for running handlers to end (Ctrl-C again to "
            "give them up)",
        )
        await self._worker.stop()
        if self._http is not None:
            await self._http.stop()
        await self._engine.stop()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for job in ended:
            job.result()

    def _on_signals(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def asked() -> None:
            if stop.is_set():  # Twice: at once.
                self._tell("dev", "giving up what still runs; it goes on at the next start")
                self._worker.kill()
                self._engine.kill()
                if self._http is not None:
                    self._http.kill()
            stop.set()

        if sys.platform != "win32":
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(each, asked)

    async def _serve(self) -> None:
        """Run the worker once the engine has set the namespace up, and say when it serves."""
        settings = Settings.from_env(url=self._server.url)
        if not await self._is_set_up(settings):
            raise ServerError(
                f"the engine did not set up namespace {settings.namespace!r} within {SETUP_S:.0f} "
                "s. See why in its lines above."
            )
        serving = [asyncio.create_task(self._worker.run())]
        if self._http is not None:
            serving.append(asyncio.create_task(self._http.run()))
        try:
            await self._say_ready(settings)
            await asyncio.gather(*serving)
        finally:
            for each in serving:
                each.cancel()

    async def _is_set_up(self, settings: Settings) -> bool:
        deadline = time.monotonic() + SETUP_S
        while time.monotonic() < deadline:
            try:
                async with Client.connect(settings=settings):
                    return True
            except ServerError:
                await asyncio.sleep(_TICK_S)
        return False

    async def _say_ready(self, settings: Settings) -> None:
        async with Client.connect(settings=settings) as client:
            # Another process writes what is waited for, so it can only be asked for.
            while self._worker.pid not in {p.pid for p in await client.processes()}:
                await asyncio.sleep(_TICK_S)
            names = [*await client.workflows()]
        if self._as_json:
            output.emit({"event": "dev.ready", "url": self._server.url, "workflows": names})
            return
        self._tell("dev", f"ready; workflows: {', '.join(names) or 'none'}")
        if names:
            self._tell("dev", f"start a run: treadle run start {names[0]} --input JSON --watch")

    async def _reload(self) -> None:
        async for names in changes(self._watched, self._sources):
            self._tell("dev", f"{', '.join(names)} changed; a new worker starts")
            await self._worker.restart()

    async def _keep_server(self) -> None:
        while True:
            await asyncio.sleep(_SERVER_CHECK_S)
            if not self._server.is_running:
                self._tell("server", "ended; starting again")
                self._server.restart()

    def _tell(self, process: str, line: str) -> None:
        if self._as_json:
            output.emit({"process": process, "line": line})
        else:
            output.say(f"{process:<6}  {line}", "dim" if process == "dev" else "")
