"""What `deploy/` promises a cluster: it renders, every container is probed, bounded and confined, and every setting
that it passes is one that the service knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.deployed import KUBERNETES, ROOT, SERVICES, known_settings
from support.kustomize import Document, containers_of, has_kubectl, render_by_hand, render_with_kubectl

Render = Callable[[Path], list[Document]]


@pytest.fixture(params=["base", "overlays/kind", "overlays/gpu"])
def folder(request: pytest.FixtureRequest) -> Path:
    return KUBERNETES / str(request.param)


@pytest.fixture(params=["by hand", "kubectl"])
def documents(request: pytest.FixtureRequest, folder: Path) -> list[Document]:
    if request.param == "by hand":
        return render_by_hand(folder)
    if not has_kubectl():
        pytest.skip("no kubectl here: the same checks run on the kustomization resolved by hand")
    return render_with_kubectl(folder)


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """(name, pod template) of each workload."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield document["metadata"]["name"], document["spec"]["template"]


def containers(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        yield from containers_of(document)


def named(documents: list[Document], kind: str, prefix: str) -> Document:
    """The one document of `kind` whose name is `prefix`, a generated hash aside."""
    [found] = [
        one
        for one in documents
        if one["kind"] == kind
        and (one["metadata"]["name"] == prefix or one["metadata"]["name"].startswith(f"{prefix}-"))
    ]
    return found


def test_every_service_and_redis_is_there(documents: list[Document]) -> None:
    assert {name for name, _ in pods(documents)} == {"verifier", "drafter", "gateway", "redis"}
    budgets = {one["metadata"]["name"] for one in documents if one["kind"] == "PodDisruptionBudget"}
    assert budgets == set(SERVICES)
    assert {one["metadata"]["name"] for one in documents if one["kind"] == "Service"} == {
        "verifier",
        "gateway",
        "redis",
    }


def test_every_container_is_probed_and_its_probes_name_its_ports(documents: list[Document]) -> None:
    for container in containers(documents):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        kinds = ["readinessProbe", "livenessProbe"]
        if container["name"] in SERVICES:
            kinds.append("startupProbe")
        for kind in kinds:
            probe = container[kind]
            if "grpc" in probe:
                assert probe["grpc"]["port"] == ports["grpc"], (container["name"], kind)
            elif "httpGet" in probe:
                assert probe["httpGet"] == {"path": "/health", "port": "http"}
                assert "http" in ports
            else:
                assert probe["exec"]["command"]
    by_name = {container["name"]: container for container in containers(documents)}
    assert by_name["verifier"]["readinessProbe"]["grpc"]["service"] == "specgrove.proto.v1.VerifierService"
    assert "grpc" in by_name["drafter"]["readinessProbe"]
    assert "httpGet" in by_name["gateway"]["readinessProbe"]


def test_every_container_is_bounded(documents: list[Document]) -> None:
    for container in containers(documents):
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys(), container["name"]
        assert "memory" in resources["limits"], container["name"]


def test_every_pod_is_confined(documents: list[Document]) -> None:
    for name, template in pods(documents):
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, container["name"]
            for mount in container["volumeMounts"]:
                assert mount.get("readOnly") or mount["name"] in ("scratch", "data")


def test_service_links_cannot_be_mistaken_for_settings(documents: list[Document]) -> None:
    for name, template in pods(documents):
        assert template["spec"]["enableServiceLinks"] is False, name


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_passed_is_known_and_readable(documents: list[Document], service: str) -> None:
    config_map = named(documents, "ConfigMap", f"{service}-settings")
    [container] = [one for one in containers(documents) if one["name"] == service]
    assert container["envFrom"] == [{"configMapRef": {"name": config_map["metadata"]["name"]}}]
    known = known_settings(service)
    passed: dict[str, str | None] = dict(config_map["data"])
    for entry in container.get("env", []):
        if entry["name"].startswith("SPECGROVE_"):
            passed[entry["name"]] = entry.get("value")
    assert passed.keys() <= known.keys()
    for name, text in passed.items():
        if text is not None:
            known[name].parse(text)
    for name, one in known.items():
        assert not one.is_required or name in passed


def test_pods_advertise_their_own_address_at_the_port_they_listen_on(documents: list[Document]) -> None:
    for service in ("verifier", "drafter"):
        [container] = [one for one in containers(documents) if one["name"] == service]
        environment = {entry["name"]: entry for entry in container["env"]}
        port = named(documents, "ConfigMap", f"{service}-settings")["data"][f"SPECGROVE_{service.upper()}_PORT"]
        address = environment[f"SPECGROVE_{service.upper()}_ADVERTISE_ADDRESS"]["value"]
        assert address == f"$(POD_IP):{port}"
        names = list(environment)
        assert names.index("POD_IP") < names.index(f"SPECGROVE_{service.upper()}_ADVERTISE_ADDRESS")
        assert environment["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_container_ports_are_the_ports_of_the_settings(documents: list[Document]) -> None:
    settings_by_port = {"grpc": "GRPC_PORT", "http": "HTTP_PORT", "metrics": "METRICS_PORT"}
    for service in SERVICES:
        [container] = [one for one in containers(documents) if one["name"] == service]
        values = named(documents, "ConfigMap", f"{service}-settings")["data"]
        for port in container["ports"]:
            setting_name = settings_by_port[port["name"]]
            if service != "gateway" and port["name"] == "grpc":
                setting_name = "PORT"
            assert values[f"SPECGROVE_{service.upper()}_{setting_name}"] == str(port["containerPort"])


def test_selectors_find_their_pods_and_services_their_ports(documents: list[Document]) -> None:
    templates = dict(pods(documents))
    for document in documents:
        spec, name = document.get("spec", {}), document["metadata"]["name"]
        if document["kind"] == "Service":
            selector = spec["selector"]
            ports = {port["name"] for one in templates[name]["spec"]["containers"] for port in one["ports"]}
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif document["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            selector = spec["selector"]["matchLabels"]
        else:
            continue
        assert selector.items() <= templates[name]["metadata"]["labels"].items()
    stateful = named(documents, "StatefulSet", "verifier")
    headless = named(documents, "Service", "verifier")
    assert stateful["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"


def test_claims_that_pods_mount_exist(documents: list[Document]) -> None:
    claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
    for _, template in pods(documents):
        for volume in template["spec"].get("volumes", []):
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_images_are_pinned_and_have_a_dockerfile(documents: list[Document]) -> None:
    for container in containers(documents):
        name, _, tag = container["image"].partition(":")
        assert tag not in ("", "latest"), container["image"]
        if name.startswith("specgrove/"):
            assert (ROOT / "services" / name.removeprefix("specgrove/") / "Dockerfile").is_file()


def test_the_model_is_served_under_one_name(documents: list[Document]) -> None:
    verifier = named(documents, "ConfigMap", "verifier-settings")["data"]
    gateway = named(documents, "ConfigMap", "gateway-settings")["data"]
    assert verifier["SPECGROVE_VERIFIER_MODEL_NAME"] == gateway["SPECGROVE_GATEWAY_MODEL_NAME"]


def test_by_hand_and_kubectl_agree_on_what_matters(folder: Path) -> None:
    if not has_kubectl():
        pytest.skip("no kubectl here")
    by_hand, rendered = (
        {
            (one["kind"], one["metadata"]["name"]): one["spec"]
            for one in documents
            if one["kind"] in ("Service", "PodDisruptionBudget", "PersistentVolumeClaim", "PersistentVolume")
        }
        for documents in (render_by_hand(folder), render_with_kubectl(folder))
    )
    assert by_hand == rendered
