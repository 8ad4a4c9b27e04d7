"""Deployments start commands and set settings that exist. Method: take every `treadle …` out of
the deployment files and let the command line parse it, without running it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from treadle.cli.main import app

SETTING = re.compile(r"\bTREADLE_[A-Z_]+\b")


def _of_compose(root: Path) -> list[list[str]]:
    services = yaml.safe_load((root / "docker-compose.yml").read_text("utf-8"))["services"]
    commands = [service.get("command", []) for service in services.values()]
    probes = [service.get("healthcheck", {}).get("test", [""])[1:] for service in services.values()]
    return [command for command in commands if command and not command[0].startswith("--")] + [
        probe[1:] for probe in probes if probe[:1] == ["treadle"]
    ]


def _of_kubernetes(root: Path) -> list[list[str]]:
    found: list[list[str]] = []
    for path in sorted((root / "deploy" / "kubernetes").glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text("utf-8")):
            pod: dict[str, Any] = item.get("spec", {}).get("template", {}).get("spec", {})
            for container in pod.get("containers", []):
                if not container["image"].startswith("treadle"):
                    continue
                found.append(container["args"])
                probes = [container[key] for key in container if key.endswith("Probe")]
                found += [probe["exec"]["command"][1:] for probe in probes]
    return found


def _of_systemd(root: Path) -> list[list[str]]:
    units = [path.read_text("utf-8") for path in (root / "deploy" / "systemd").glob("*.service")]
    lines = [line for unit in units for line in re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("find", [_of_compose, _of_kubernetes, _of_systemd])
def test_every_command_that_a_deployment_starts_exists(root: Path, find: Any) -> None:
    group: Any = typer.main.get_command(app)
    commands = find(root)
    assert {"engine", "worker"} <= {command[0] for command in commands}
    for name, *arguments in commands:
        group.commands[name].make_context(name, list(arguments))


def test_every_setting_that_a_deployment_names_is_read_by_the_code(
    root: Path, tree: list[Path], modules: list[Path], texts: dict[Path, str]
) -> None:
    deployed = [path for path in tree if path.is_relative_to(root / "deploy")]
    deployed.append(root / "docker-compose.yml")
    named = {name for path in deployed for name in SETTING.findall(texts[path])}
    assert named
    code = "".join(texts[path] for path in modules)
    assert sorted(name for name in named if f'"{name}"' not in code) == []
