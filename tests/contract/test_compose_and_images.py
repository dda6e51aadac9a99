"""What compose and the Dockerfiles promise: confined and checked services, known settings, images that can be built."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.deployed import KUBERNETES, ROOT, SERVICES, known_settings
from support.kustomize import containers_of, render_by_hand


@pytest.fixture
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text()))


def test_compose_has_every_service_confined_and_checked(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services.keys() == {"redis", *SERVICES}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["healthcheck"]["test"][0] == "CMD", name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "the demo is for this machine alone"


@pytest.mark.parametrize("service", SERVICES)
def test_compose_passes_known_settings_and_builds_from_the_dockerfile(compose: dict[str, Any], service: str) -> None:
    spec = compose["services"][service]
    build = spec["build"]
    context = (ROOT / "deploy" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    known = known_settings(service)
    passed = dict(spec["environment"]) | dockerfile_environment(service)
    settings = {name: text for name, text in passed.items() if name.startswith("SPECGROVE_")}
    assert settings.keys() <= known.keys()
    for name, text in settings.items():
        known[name].parse(text)
    for name, one in known.items():
        assert not one.is_required or name in settings


def test_compose_and_kubernetes_run_the_same_images(compose: dict[str, Any]) -> None:
    in_cluster = {
        one["name"]: one["image"] for document in render_by_hand(KUBERNETES / "base") for one in containers_of(document)
    }
    assert {name: service["image"] for name, service in compose["services"].items()} == in_cluster


def dockerfile_lines(service: str) -> list[str]:
    text = (ROOT / "services" / service / "Dockerfile").read_text()
    return [
        line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")
    ]


def copied_sources(service: str) -> list[str]:
    """Paths that the image takes from the repository."""
    copies = [
        line.split()[1:] for line in dockerfile_lines(service) if line.startswith("COPY ") and "--from=" not in line
    ]
    return [word for words in copies for word in words[:-1] if not word.startswith("--")]


def dockerfile_environment(service: str) -> dict[str, str]:
    [line] = [line for line in dockerfile_lines(service) if line.startswith("ENV ")]
    return dict(word.split("=", 1) for word in line.removeprefix("ENV ").split())


@pytest.mark.parametrize("service", SERVICES)
def test_dockerfiles_copy_what_exists_and_run_as_nobody_special(service: str) -> None:
    lines = dockerfile_lines(service)
    assert [source for source in copied_sources(service) if not (ROOT / source).exists()] == []
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER 10001:10001"]
    assert lines.index(users[0]) > max(place for place, line in enumerate(lines) if line.startswith("RUN "))
    assert lines[-1] == f'ENTRYPOINT ["python", "-m", "specgrove_{service}"]'
    [base] = [line.partition("=")[2] for line in lines if line.startswith("ARG PYTHON_IMAGE=")]
    assert base.startswith("python:3.11.")


@pytest.mark.parametrize("service", SERVICES)
def test_the_build_context_holds_what_the_dockerfile_copies(service: str) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [source for source in copied_sources(service) if source not in allowed] == []
