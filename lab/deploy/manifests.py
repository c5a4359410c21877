"""deploy/kubernetes as a test reads it: its manifests, and the Secrets that its script makes."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.house import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
SCHEMAS = ROOT / "tests" / "data" / "schemas"
Manifest = dict[str, Any]


def kustomization() -> Manifest:
    found: Manifest = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return found


def manifests(kind: str = "") -> list[Manifest]:
    """Of the files that the kustomization lists, in its order."""
    return [each for each in _manifests() if kind in ("", each["kind"])]


@functools.cache
def _manifests() -> list[Manifest]:
    texts = [(KUBERNETES / name).read_text() for name in kustomization()["resources"]]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def manifest(kind: str, name: str) -> Manifest:
    (found,) = (each for each in manifests(kind) if each["metadata"]["name"] == name)
    return found


def workloads() -> list[Manifest]:
    return [each for each in manifests() if each["kind"] in ("StatefulSet", "Deployment")]


def pod(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]["spec"]
    return found


def labels(workload: Manifest) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def containers(workload: Manifest) -> list[Manifest]:
    return [*pod(workload).get("initContainers", ()), *pod(workload)["containers"]]


def ports(workload: Manifest) -> dict[str, int]:
    """Name → number of the ports of its containers."""
    return {port["name"]: port["containerPort"] for each in containers(workload) for port in each.get("ports", ())}


def selected(selector: Mapping[str, str]) -> list[Manifest]:
    """The workloads whose pods have these labels."""
    return [each for each in workloads() if selector.items() <= labels(each).items()]


def generated() -> dict[tuple[str, str], dict[str, str]]:
    """(kind, name) → key → file of every Secret and ConfigMap that the kustomization makes."""
    kinds = {"Secret": "secretGenerator", "ConfigMap": "configMapGenerator"}
    return {
        (kind, each["name"]): {file.partition("=")[0]: file.rpartition("=")[2] for file in each["files"]}
        for kind, generator in kinds.items()
        for each in kustomization()[generator]
    }


def copied(folder: Path, replaced: Mapping[str, str] = {}) -> Path:
    """A copy of deploy/kubernetes with other names, in which the script has made what the kustomization needs."""
    place = folder / "kubernetes"
    shutil.copytree(KUBERNETES, place, ignore=shutil.ignore_patterns("secrets"))
    for file in place.iterdir():
        text = file.read_text()
        for name, other in replaced.items():
            text = text.replace(name, other)
        file.write_text(text)
    subprocess.run([str(place / "create_secrets.sh")], check=True)
    return place


def crd_schemas() -> Iterator[tuple[str, str, Manifest]]:
    """(apiVersion, kind, schema) of the custom resources. A field that a schema does not know is an error here, where
    Kubernetes would drop it."""
    for file in SCHEMAS.iterdir():
        found = yaml.safe_load(file.read_text())
        schema = found["schema"]
        schema["properties"]["metadata"] |= {"properties": {"name": {"type": "string"}}}
        _close(schema)
        yield found["version"], found["kind"], schema


def _close(schema: Any) -> None:
    """Fields that no schema names are refused, at every depth."""
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    for each in schema.values():
        _close(each)
