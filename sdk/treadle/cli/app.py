"""A user's file: imported, and searched for its workflows and its worker.

``app.py``, ``package.module`` and either with ``:name`` are understood. The user's code runs here;
whatever it raises becomes one clear error with the lines of the user's own files.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import UserError

if TYPE_CHECKING:
    from treadle.worker import Worker


@dataclass(frozen=True, slots=True)
class App:
    """What was found in a user's file."""

    source: str
    path: Path
    """The file, so that its directory can be watched."""
    workflows: tuple[WorkflowDefinition, ...]
    workers: dict[str, Worker]
    """By the name of the variable that holds it."""


def load(target: str) -> App:
    """Import what ``target`` names; raise ``UserError`` if it cannot be or holds nothing."""
    name, _, attribute = _split(target)
    module = _import(name)
    found = vars(module)
    if attribute:
        if attribute not in found:
            raise UserError(
                f"{name} has no {attribute!r}, so there is nothing to load. Name a Workflow or a "
                f"Worker that {name} defines, or leave out ':{attribute}'."
            )
        found = {attribute: found[attribute]}
    return _search(name, Path(module.__file__ or name), found)


def names_in(target: str) -> tuple[dict[str, object], str]:
    """Import what ``target`` names; return all its names, and the one after the colon or ''."""
    name, _, attribute = _split(target)
    return dict(vars(_import(name))), attribute


def worker_of(app: App) -> Worker:
    """Return the app's only worker; raise ``UserError`` if there is none, or several."""
    if not app.workers:
        raise UserError(
            f"{app.source} has no Worker, so no task could be executed. Add one: "
            '`worker = Worker()`, and its handlers: `@worker.handler("type")`.'
        )
    if len(app.workers) > 1:
        names = ", ".join(app.workers)
        first = next(iter(app.workers))
        raise UserError(
            f"{app.source} has {len(app.workers)} Workers: {names}. One process runs one. Name it: "
            f"`{app.source}:{first}`."
        )
    return next(iter(app.workers.values()))


def file_of(target: str) -> Path | None:
    """Return the file that ``target`` names, without importing it; None if it is a module."""
    name = _split(target)[0]
    return Path(name).resolve() if _is_path(name) else None


# ---------------------------------------------------------------- leaves


def _split(target: str) -> tuple[str, str, str]:
    # A drive letter of Windows is no attribute.
    head, colon, tail = target.rpartition(":")
    return (
        (head, colon, tail) if colon and tail.isidentifier() and len(head) > 1 else (target, "", "")
    )


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name


def _import(name: str) -> ModuleType:
    if Path(name).is_dir() and (_is_path(name) or set(name) <= {"."}):
        raise UserError(
            f"{name} is a directory, and a file is wanted. Give the path of the file in it that "
            f"defines your workflow, such as {Path(name) / 'app.py'}."
        )
    if _is_path(name):
        path = Path(name)
        if not path.is_file():
            raise UserError(
                f"{name} is not a file in {Path.cwd()}, so nothing can be loaded. Give the path of "
                "the Python file with your workflow and worker."
            )
        return _run_import(name, path.resolve())
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _run_import(name, None)


def _run_import(name: str, path: Path | None) -> ModuleType:
    try:
        return importlib.import_module(name) if path is None else _import_file(path)
    except SyntaxError as exc:
        line = (exc.text or "").rstrip()
        raise UserError(
            f"{name} cannot be imported: {exc.msg} ({exc.filename}, line {exc.lineno})\n"
            f"    {line.strip()}\nCorrect the line."
        ) from exc
    except KeyboardInterrupt:
        raise  # Ctrl-C, while it was imported.
    except SystemExit as exc:
        raise UserError(
            f"{name} cannot be imported: it ended the process with SystemExit({exc.code!r:.80})"
            f"{_at(exc)}\n{_own_lines(exc)}"
            'Put what ends it below `if __name__ == "__main__":`, or take it out.'
        ) from exc
    except BaseException as exc:
        raise UserError(
            f"{name} cannot be imported: {_text(exc)}\n{_own_lines(exc)}"
            "Correct it, or set what it asks of the environment and start the command again."
        ) from exc


def _text(exc: BaseException) -> str:
    """Return type and text of whatever a user's module raised: bounded, and without raising."""
    from treadle.worker.failure import describe

    return str(describe(exc))


def _at(exc: BaseException) -> str:
    frames = _own_frames(exc)
    return f" at line {frames[-1].lineno}" if frames else ""


def _import_file(path: Path) -> ModuleType:
    root, dotted = _package_of(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if "." in dotted:
        return importlib.import_module(dotted)
    # A file named like a module of Python's own must not take its place.
    name = dotted if dotted not in sys.stdlib_module_names else f"treadle_app_{dotted}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(path: Path) -> tuple[Path, str]:
    """Return the directory imports start from, and the dotted name of the file below it."""
    names, directory = [path.stem], path.parent
    while (directory / "__init__.py").is_file():
        names.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(names)


def _own_lines(exc: BaseException) -> str:
    """Return the traceback from the first line outside of this file and the import machinery."""
    return "".join(traceback.format_list(_own_frames(exc)[-5:]))


def _own_frames(exc: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(exc.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    if isinstance(exc, UserError | ImportError):
        # The text says it all; where Treadle found out is nothing to correct.
        while own and own[-1].filename.startswith(_treadle()):
            own.pop()
    return own


def _treadle() -> tuple[str, ...]:
    """Return the directories of Treadle's packages; its examples, beside them, are users' files."""
    import treadle.sdk
    import treadle.worker

    found = [*treadle.sdk.__path__, *treadle.worker.__path__]
    return tuple(f"{directory}{os.sep}" for directory in found)


def _search(source: str, path: Path, found: dict[str, object]) -> App:
    from treadle.sdk.builder import Workflow
    from treadle.worker import Worker

    workflows: list[WorkflowDefinition] = []
    workers: dict[str, Worker] = {}
    # One object under two names is one; a name that is imported counts like one that is defined.
    once = {id(value): (name, value) for name, value in reversed(found.items())}
    for name, value in reversed(once.values()):
        if isinstance(value, Workflow):
            workflows.append(cast("Any", value).build())
        elif isinstance(value, WorkflowDefinition):
            workflows.append(value)
        elif isinstance(value, Worker):
            workers[name] = value
    return App(source, path, tuple(workflows), workers)
