"""`deploy/compose.yaml` brought up for real, under a project name and tags of its own."""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from tests.support.processes import free_port
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "deploy" / "compose.yaml"
TAG: Final = "test"
LOCAL_IMAGES: Final = {
    "BASE_IMAGE": "penstock-local/python:3.11-slim-bookworm",
    "NATS_IMAGE": "penstock-local/nats:2-alpine",
    "PIP_NO_INDEX": "1",
}
"""What deploy/local-images.sh made; an environment that names others wins."""

UP_S: Final = 600
"""A quiet machine takes one minute; one that is busy must not be taken for a broken deployment."""
_COMMAND_S: Final = 900
_POLL_S: Final = 0.3


@dataclass(slots=True)
class Deployment:
    """One project of Compose.

    Attributes:
        project: Its name, on which those of containers, volumes and the network begin.
        otlp_port: Where the collector takes OTLP over HTTP on this machine.
        console_port: Where the console is.
        environment: Of every command.
        ids: Of containers, by service, as far as they were asked for.
    """

    project: str = field(default_factory=lambda: f"penstock-test-{os.getpid()}")
    otlp_port: int = field(default_factory=free_port)
    console_port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """What the file takes from the environment."""
        ports = {
            "PENSTOCK_OTLP_HTTP_PORT": str(self.otlp_port),
            "PENSTOCK_CONSOLE_PORT": str(self.console_port),
            "PENSTOCK_OTLP_GRPC_PORT": str(free_port()),
            "PENSTOCK_FORWARD_PORT": str(free_port()),
        }
        chosen = {"COMPOSE_PROFILES": "console", "PENSTOCK_VERSION": TAG, **ports}
        return {**LOCAL_IMAGES, **os.environ, **chosen, **self.environment}

    def __post_init__(self) -> None:
        self.environment = self.variables()

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Run `docker compose`; returns what it printed."""
        command = ["docker", "compose", "-p", self.project, "-f", str(FILE), *arguments]
        return self._run(command, check=check)

    def docker(self, *arguments: str, check: bool = True) -> str:
        """Run `docker`."""
        return self._run(["docker", *arguments], check=check)

    def _run(self, command: list[str], *, check: bool) -> str:
        done = subprocess.run(
            command, env=dict(self.environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        if check and done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise AssertionError(f"{' '.join(command[:8])} ended with {done.returncode}:\n{tail}")
        return done.stdout

    def up(self) -> None:
        """As its users do; returns when every service is healthy.

        Raises:
            AssertionError: One was not, in time.
        """
        self.compose("up", "-d", "--wait", "--wait-timeout", str(UP_S))

    def down(self) -> None:
        """Remove everything but the images."""
        self.compose("--profile", "*", "down", "-v", "-t", "10", "--remove-orphans", check=False)

    def get(self, port: int, path: str) -> str:
        """What is served on a port of this machine."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def act(self, wanted: Mapping[str, str], token: str) -> tuple[int, dict[str, Any]]:
        """Ask the console to do something; its status code, and what it says."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection = HTTPConnection("127.0.0.1", self.console_port, timeout=30)
        connection.request("POST", "/api/actions", json.dumps(dict(wanted)), headers)
        answer = connection.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
        connection.close()
        return answer.status, said

    def ids_of(self, *services: str) -> dict[str, str]:
        """Of each service's container as it is now, also of one that took another's place."""
        self.ids.clear()
        return {service: self.container(service) for service in services}

    def container(self, service: str) -> str:
        """The container's id, which a crash or restart does not change."""
        if service not in self.ids:
            self.ids[service] = self.compose("ps", "-a", "-q", service).strip()
        return self.ids[service]

    def inspect(self, service: str) -> dict[str, Any]:
        """All that the engine knows of a service's container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return found[0]

    def health(self, *services: str) -> dict[str, str]:
        """By service `healthy`, or what it is instead."""
        shown = "{{if .State.Running}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}"
        containers = [self.container(service) for service in services]
        states = self.docker("inspect", "-f", shown, *containers).splitlines()
        return dict(zip(services, states, strict=True))

    def await_healthy(self, *services: str, within_s: float = 60) -> None:
        """Wait until all of them are."""
        states: dict[str, str] = {}

        def all_are() -> bool:
            time.sleep(_POLL_S)  # each look costs the machine something
            states.update(self.health(*services))
            return set(states.values()) == {"healthy"}

        try:
            wait_until(all_are, within_s=within_s)
        except AssertionError:
            raise AssertionError(f"not healthy: {states}\n{self.logs()}") from None

    def crash(self, service: str) -> None:
        """Kill a container's first process as the kernel would; its restart policy applies."""
        before = self.inspect(service)
        try:
            os.kill(before["State"]["Pid"], 9)
        except PermissionError:  # not root here: the engine does it, and calls that a stop
            self.docker("kill", before["Id"])
            self.docker("start", before["Id"])
        wait_until(
            lambda: self.inspect(service)["State"]["StartedAt"] != before["State"]["StartedAt"],
            what=f"{service} is started again",
        )

    def logs(self) -> str:
        """The last of what every container said."""
        return self.compose("logs", "--no-color", "--tail", "60", check=False)
