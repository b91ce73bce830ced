"""Settings of what is asked of Kubernetes and Docker."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from penstock.collector.sources.settings import Section
from penstock.service import FilePath
from penstock.service.config_types import Form

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiSection(Section):
    """Address and credentials of the API server."""

    server: Annotated[
        str, Form(r"^https?://[^/\s]+$", "a URL without a path, as https://HOST:PORT")
    ] = Field(
        default="https://kubernetes.default.svc",
        description="URL; of a kubelet as in https://127.0.0.1:10250",
    )
    token_file: FilePath = Field(
        default=_SERVICE_ACCOUNT / "token", description="read again for each request"
    )
    ca_file: FilePath = Field(default=_SERVICE_ACCOUNT / "ca.crt", description="PEM")
    verify: bool = Field(
        default=True, description="false: any certificate is taken, as kubelets sign their own"
    )
    timeout_s: float = Field(default=10.0, gt=0, le=300, description="of one request")


class KubernetesSection(ApiSection):
    """Whom the pods of the files' containers are asked of, for `k8s.*` resource attributes."""

    ask: Literal["api", "kubelet"] = Field(
        default="api", description="the API server for the pods of the node, or its kubelet"
    )
    node: str | None = Field(default=None, min_length=1, description="by default `name`")
    labels: list[str] = Field(
        default=["*"], description="names of the pod's labels that are wanted; patterns"
    )
    annotations: list[str] = Field(
        default=[], description="names of the pod's annotations that are wanted; patterns"
    )
    refresh_s: float = Field(
        default=30.0, ge=1, le=3600, description="between two lists of a kubelet"
    )
    wait_s: float = Field(
        default=5.0, ge=0, le=300, description="how long a new file waits for what its pod is"
    )


class DockerSection(Section):
    """Whom the containers of Docker's files are asked of, for `container.*` resource attributes."""

    socket: FilePath = Field(
        default=Path("/var/run/docker.sock"), description="Docker's; who may use it is root"
    )
    labels: list[str] = Field(
        default=["*"], description="names of the container's labels that are wanted; patterns"
    )
    refresh_s: float = Field(
        default=300.0, ge=1, le=86_400, description="how old a container's name may be"
    )
    timeout_s: float = Field(default=5.0, gt=0, le=300, description="of one request")
    wait_s: float = Field(
        default=5.0, ge=0, le=300, description="how long a new file waits for what its container is"
    )
