"""logd's configuration: the YAML file's keys, their defaults and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    model_validator,
)

from penstock.logd.api.server import FetchLimits
from penstock.logd.cluster.config import ClusterSection
from penstock.logd.encryption.master_keys import EncryptionSection, MasterKeys
from penstock.logd.intake.admission import AdmissionPolicy
from penstock.logd.liftbridge.config import GrpcSection
from penstock.logd.limits import STREAMS_MAX, UNAUTHENTICATED_BESIDES
from penstock.logd.metadata.streams import (
    StreamConfig,
    activity_stream,
)
from penstock.logd.nats.config import NatsSettings
from penstock.logd.security.config import AuthSection, Endpoint, TlsSection, check_encrypted
from penstock.logd.stream_options import ConfiguredStream
from penstock.service import HostPort, Quantities, TracingSection

ENV_PREFIX: Final = "PENSTOCK_LOGD"
"""Prefix of the environment variables that override keys."""

_MIB = 1024 * 1024


class _Settings(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ActivitySettings(_Settings):
    """The stream `__activity`, of what happened, when and by whom.

    Attributes:
        max_bytes: Bytes of the stream; beyond them the oldest events are deleted.
        age_s: After how many seconds an event may go.
    """

    max_bytes: Annotated[int, Field(ge=_MIB, le=1 << 50)] = 256 * _MIB
    age_s: Annotated[int, Field(ge=60, le=100 * 365 * 86_400)] = 90 * 86_400

    def stream(self) -> StreamConfig:
        """The stream as the core knows it."""
        return activity_stream(bytes_max=self.max_bytes, age_s=self.age_s)


class LogdConfig(_Settings):
    """The whole file.

    Attributes:
        node: This node's name in its streams' replica sets. In a cluster no other has it.
        data_dir: Everything logd keeps; one process at a time.
        fetch: Address for readers and the command line.
        admin: Address of `/healthz`, `/metrics` and `/status`.
        admin_hosts: Names with a dot by which `admin` may be called without TLS, besides the
            machine's own; addresses and names without a dot always may.
        grpc: Liftbridge's API; none: it is not served.
        tls: TLS of fetch, grpc and admin; none: they have none.
        auth: Authentication and authorization of callers.
        insecure_listeners: Those that may go without TLS where other machines can reach them.
        cluster: The cluster that it is a node of; none: one of this node alone.
        activity: Settings of the activity stream; none: events are only logged.
        max_quota_delay_s: Maximum seconds that a request over its quota is delayed before it is
            refused.
        encryption: Master keys for streams that are encrypted on disk; none: there are no such.
        streams: Made at start when missing. Without `cluster` the options of those that are there
            follow the file; their subject cannot.
        max_intake_bytes: Bytes of accepted messages that may wait for the disk, over all streams.
        min_free_bytes: Bytes that stay free on the disk of `data_dir`: below it publishers are
            refused, so that retention, purges and commands have space to free more. It is looked at
            each second; 0: publishers are refused when the disk is full.
        max_streams: Streams there may be, those configured included.
        max_metrics_streams: Partitions that have their own series at `/metrics`; of more, those
            in trouble, then those with most records since the start.
        unsubscribe_after_s: Seconds that a stream may refuse messages for lack of room before it
            leaves its subject; none: unlimited.
        resubscribe_after_s: Minimum seconds that it then stays off its subject.
        max_connections: Connections to `fetch` at a time.
        max_outstanding_fetches: Requests under way on one connection.
        max_outstanding_fetches_total: Requests under way on all connections.
        fetch_stall_s: Seconds that a reader may receive nothing of an answer before it is cut off.
        max_cursors: Consumers' cursors at a time.
        retention_interval_s: Seconds between looks at what may be deleted.
        compaction_interval_s: Seconds between looks at what may be compacted.
        max_compaction_bytes_per_s: Bytes that compaction reads and writes, over all streams.
        compaction_memory_bytes: Bytes for the keys of one pass.
        compaction_dirty_ratio: Share of a stream's bytes not compacted yet that calls for a pass.
        connect_timeout_s: Seconds that NATS may be away at start.
        drain_timeout_s: Maximum seconds of a stop.
    """

    node: Annotated[str, Field(min_length=1, max_length=64)] = "logd-1"
    data_dir: Path
    nats: NatsSettings = NatsSettings()
    fetch: HostPort = "127.0.0.1:9293"
    admin: HostPort = "127.0.0.1:9294"
    admin_hosts: tuple[str, ...] = ()
    grpc: GrpcSection | None = None
    cluster: ClusterSection | None = None
    activity: ActivitySettings | None = None
    tracing: TracingSection | None = None
    max_quota_delay_s: Annotated[float, Field(ge=0, le=60)] = 2.0
    tls: TlsSection | None = None
    auth: AuthSection = AuthSection()
    insecure_listeners: tuple[Endpoint, ...] = ()
    encryption: EncryptionSection | None = None
    streams: tuple[ConfiguredStream, ...] = ()
    max_intake_bytes: Annotated[int, Field(ge=64 * 1024, le=64 * 1024 * _MIB)] = 256 * _MIB
    min_free_bytes: Annotated[int, Field(ge=0, le=1 << 40)] = 256 * _MIB
    max_streams: Annotated[int, Field(ge=1, le=100_000)] = STREAMS_MAX
    max_metrics_streams: Annotated[int, Field(ge=0, le=100_000)] = 400
    unsubscribe_after_s: Annotated[float, Field(ge=0.1, le=86_400)] | None = 10.0
    resubscribe_after_s: Annotated[float, Field(ge=0.1, le=86_400)] = 1.0
    max_connections: Annotated[int, Field(ge=1, le=65_536)] = 256
    max_outstanding_fetches: Annotated[int, Field(ge=1, le=65_536)] = 64
    max_outstanding_fetches_total: Annotated[int, Field(ge=1, le=1_048_576)] = 4096
    fetch_stall_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    max_cursors: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    retention_interval_s: Annotated[float, Field(ge=0.05, le=3600)] = 30.0
    compaction_interval_s: Annotated[float, Field(ge=0.05, le=3600)] = 30.0
    max_compaction_bytes_per_s: Annotated[int, Field(ge=64 * 1024, le=1 << 40)] = 32 * _MIB
    compaction_memory_bytes: Annotated[int, Field(ge=64 * 1024, le=64 * 1024 * _MIB)] = 64 * _MIB
    compaction_dirty_ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    connect_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    drain_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def takes_down(self) -> bool:
        """True if audited operations are recorded in the activity stream."""
        return self.activity is not None or self.auth.acl

    @property
    def activity_section(self) -> ActivitySettings:
        """Settings of the activity stream; the defaults where the section is absent."""
        return self.activity or ActivitySettings()

    def fetch_limits(self) -> FetchLimits:
        """Return the bounds on readers."""
        return FetchLimits(
            max_connections=self.max_connections,
            outstanding_max=self.max_outstanding_fetches,
            outstanding_total_max=self.max_outstanding_fetches_total,
            stall_s=self.fetch_stall_s,
        )

    def connections(self) -> int:
        """Return the maximum of client connections, unauthenticated ones included."""
        grpc = 0 if self.grpc is None else self.grpc.max_connections
        return 2 * self.max_connections + UNAUTHENTICATED_BESIDES + grpc

    @property
    def cluster_section(self) -> ClusterSection:
        """The cluster that this node belongs to; without a section it is one of this node alone."""
        return self.cluster or ClusterSection.alone(self.node)

    def masters(self) -> MasterKeys:
        return MasterKeys.of(self.encryption)

    def admission_policy(self) -> AdmissionPolicy:
        """Return when a stream without room leaves its subject."""
        after_s = self.unsubscribe_after_s
        return AdmissionPolicy(
            unsubscribe_after_ns=None if after_s is None else int(after_s * 1e9),
            resubscribe_after_ns=int(self.resubscribe_after_s * 1e9),
        )

    @model_validator(mode="after")
    def _check_reachable(self) -> Self:
        if self.cluster is not None:
            reached = self.cluster.reached(self.node, self.fetch)
            if self.grpc is not None:
                reached["grpc"] = self.cluster.advertise.grpc or self.grpc.listen
            for key, address in reached.items():
                if address.rpartition(":")[0] in ("0.0.0.0", "[::]"):  # noqa: S104 - looked for
                    msg = f"nobody can connect to {address}: name this host in advertise.{key}"
                    raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_doors(self) -> Self:
        addresses: dict[Endpoint, str] = {"fetch": self.fetch, "admin": self.admin}
        encrypted: set[Endpoint] = set() if self.tls is None else {"fetch", "admin", "grpc"}
        if self.grpc is not None:
            addresses["grpc"] = self.grpc.listen
        if self.cluster is not None:
            addresses["peer"] = self.cluster.peer
            encrypted |= set() if self.cluster.tls is None else {"peer"}
        check_encrypted(addresses, frozenset(encrypted), self.insecure_listeners)
        return self

    @model_validator(mode="after")
    def _check_known(self) -> Self:
        certificates = self.tls is not None and self.tls.client_ca_file is not None
        ways = (certificates, self.auth.tokens is not None, self.auth.keys_file is not None)
        if self.auth.required and not any(ways):
            msg = "auth.required lets nobody in without auth.tokens, auth.keys_file or"
            raise ValueError(f"{msg} tls.client_ca_file")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        counts = Counter(stream.name for stream in self.streams)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            msg = f"streams are named twice: {', '.join(repeated)}"
            raise ValueError(msg)
        return self
