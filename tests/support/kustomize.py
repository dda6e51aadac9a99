"""Kustomizations as lists of documents: rendered by `kubectl kustomize`, or resolved by hand where there is no kubectl.

By hand covers what this repository uses: resources, components, configMapGenerator from env files, strategic merge
patches, replicas, images, namespace. Generated names carry no hash then.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_CLUSTER_SCOPED = {"Namespace", "PersistentVolume"}


def has_kubectl() -> bool:
    return shutil.which("kubectl") is not None


def render_with_kubectl(folder: Path) -> list[Document]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return _documents(done.stdout)


def render_by_hand(folder: Path) -> list[Document]:
    """The same documents without kubectl."""
    documents: list[Document] = []
    _apply(folder, documents)
    return documents


def _apply(folder: Path, documents: list[Document]) -> None:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for resource in kustomization.get("resources", []):
        path = folder / resource
        if path.is_dir():
            _apply(path, documents)
        else:
            documents.extend(_documents(path.read_text()))
    for component in kustomization.get("components", []):
        _apply(folder / component, documents)
    for generator in kustomization.get("configMapGenerator", []):
        values = [line for env in generator["envs"] for line in (folder / env).read_text().splitlines() if line]
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": generator["name"]},
                "data": dict(line.split("=", 1) for line in values),
            }
        )
    for patch in kustomization.get("patches", []):
        for change in _documents((folder / patch["path"]).read_text()):
            _merge(_find(documents, change["kind"], change["metadata"]["name"]), change)
    for count in kustomization.get("replicas", []):
        [workload] = [
            document
            for document in documents
            if document["kind"] in ("Deployment", "StatefulSet") and document["metadata"]["name"] == count["name"]
        ]
        workload["spec"]["replicas"] = count["count"]
    for image in kustomization.get("images", []):
        for container in (one for document in documents for one in containers_of(document)):
            if container["image"] == image["name"]:
                container["image"] = f"{image['name']}:{image['newTag']}"
    if "namespace" in kustomization:
        for document in documents:
            if document["kind"] not in _CLUSTER_SCOPED:
                document["metadata"]["namespace"] = kustomization["namespace"]


def containers_of(document: Document) -> list[Document]:
    """The containers of a workload; none for anything else."""
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def _documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def _find(documents: list[Document], kind: str, name: str) -> Document:
    [found] = [one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def _merge(onto: Any, change: Any) -> None:
    """A strategic merge: mappings by key, lists of named things by name, everything else replaced."""
    for key, value in change.items():
        there = onto.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value)
        elif isinstance(there, list) and _are_named(value) and _are_named(there):
            by_name = {entry["name"]: entry for entry in there}
            for entry in value:
                if entry["name"] in by_name:
                    _merge(by_name[entry["name"]], entry)
                else:
                    there.append(entry)
        else:
            onto[key] = value


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value)
