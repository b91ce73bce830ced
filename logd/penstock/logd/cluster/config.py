"""The section `cluster` of logd's configuration."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from penstock.logd.cluster.replication import ReplicaFetchSettings
from penstock.logd.controller.liveness import NS_PER_MS, Timing
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.records import check_node_id
from penstock.logd.replication.events import ReplicationSettings
from penstock.logd.security.tls import CertificateFiles
from penstock.service import HostPort, Quantities
from penstock.service.config_types import Form

LONE_CLUSTER: Final = "logd"
"""Name of the cluster that a logd without a section `cluster` is."""


class _Settings(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PeerTlsSettings(_Settings):
    """TLS between nodes, in which both sides show a certificate.

    Attributes:
        ca_file: PEM; who signs the certificates of the nodes, and of nobody else.
        cert_file: PEM; this node's certificate and what leads from it to the authority. It names
            the host that others dial, and is for servers and clients.
        key_file: PEM; its key.
        named_nodes: Whether each certificate must name its node, too: as its CN or an alternative
            name. Otherwise a node's certificate is good for any node.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    named_nodes: bool = False

    def files(self) -> CertificateFiles:
        return CertificateFiles(
            ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file
        )


_NOWHERE: Final = "127.0.0.1:0"
"""The peer address of a node that listens for no others."""


class AdvertiseSettings(_Settings):
    """Addresses at which others reach this node, where they differ from those it listens at."""

    peer: HostPort | None = None
    fetch: HostPort | None = None
    admin: HostPort | None = None
    grpc: HostPort | None = None


_ALONE_LEASE_MS: Final = 60_000
_ALONE_HEARTBEAT_MS: Final = 500
"""No other node could take over, so a node alone loses no lease when its process stands still."""


class ClusterSection(_Settings):
    """A node's part in a cluster.

    Attributes:
        name: Name of the cluster; a node of another one is refused.
        peer: Address at which other nodes reach this one.
        initial_members: The first nodes by name, with the `peer` of each; the same on every node.
            One that joins later is not among them.
        rack: Failure domain of this node; replicas are spread over racks.
        tls: Both sides show a certificate; none: plain connections.
        advertise: Addresses that others use, where they differ.
        lease_ms: Milliseconds that a node leads after the controller's last answer. A node that is
            cut off is replaced after a little more than that.
        heartbeat_ms: Between two heartbeats of a node.
        replica_lag_ms: Milliseconds that a replica may be behind before it counts as out of sync.
        max_catch_up_bytes_per_s: Rate of replicas that catch up, from each node; none: no limit.
    """

    name: Annotated[str, Form(r"^[A-Za-z0-9_-]{1,64}$", "1 to 64 characters of A-Z a-z 0-9 _ -")]
    peer: HostPort = "127.0.0.1:9297"
    initial_members: Annotated[dict[str, HostPort], Field(min_length=1, max_length=5)]
    rack: Annotated[str, Field(max_length=64)] = ""
    tls: PeerTlsSettings | None = None
    advertise: AdvertiseSettings = AdvertiseSettings()
    lease_ms: Annotated[int, Field(ge=100, le=60_000)] = 600
    heartbeat_ms: Annotated[int, Field(ge=20, le=20_000)] = 150
    replica_lag_ms: Annotated[int, Field(ge=100, le=600_000)] = 1500
    max_catch_up_bytes_per_s: Annotated[int, Field(ge=64 * 1024, le=1 << 40)] | None = None

    @field_validator("initial_members")
    @classmethod
    def _check_initial_members(cls, initial_members: dict[str, str]) -> dict[str, str]:
        for node in initial_members:
            try:
                check_node_id(node)
            except RefusedError as error:
                raise ValueError(str(error)) from None
        return initial_members

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.lease_ms < 2 * self.heartbeat_ms:
            msg = "lease_ms must be at least twice heartbeat_ms"
            raise ValueError(msg)
        return self

    @classmethod
    def alone(cls, node: str) -> Self:
        """Return the section of a cluster that is this node alone, which no other can reach."""
        return cls(
            name=LONE_CLUSTER,
            initial_members={node: _NOWHERE},
            lease_ms=_ALONE_LEASE_MS,
            heartbeat_ms=_ALONE_HEARTBEAT_MS,
        )

    def reached(self, node: str, fetch: str) -> dict[str, str]:
        """Return the addresses of a node of this name that listens for readers at `fetch`."""
        own = self.initial_members.get(node, self.peer)
        return {"peer": self.advertise.peer or own, "fetch": self.advertise.fetch or fetch}

    def timing(self) -> Timing:
        return Timing(heartbeat_interval_ms=self.heartbeat_ms, lease_ms=self.lease_ms)

    def replication(self) -> ReplicationSettings:
        return ReplicationSettings(replica_lag_ns=self.replica_lag_ms * NS_PER_MS)

    def feeding(self) -> ReplicaFetchSettings:
        return ReplicaFetchSettings(max_catch_up_bytes_per_s=self.max_catch_up_bytes_per_s)
