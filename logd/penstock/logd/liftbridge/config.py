"""The section `grpc` of logd's configuration."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from penstock.logd.limits import GRPC_BYTES_BEYOND
from penstock.service import HostPort

_MIB: Final = 1024 * 1024


class GrpcSection(BaseModel):
    """Liftbridge's API; it is served where this section is there.

    Attributes:
        listen: Address for clients.
        max_connections: Connections of all clients together; further ones are closed at once.
        max_message_bytes: Maximum bytes of one request; NATS's `max_payload` bounds publishes, too.
            A larger one is refused by itself, up to 2 MiB beyond it; gRPC refuses what is larger
            still, and ends the whole stream of publishes that has it.
        max_request_bytes: Bytes of requests that are read or worked on; further ones are read when
            there is room for the largest that they may be.
        max_calls: Calls under way, over all clients, subscriptions included.
        max_calls_per_connection: Maximum calls on one connection; HTTP/2 delays further ones.
        max_subscriptions: Subscriptions at a time.
        max_publish_streams: PublishAsync calls at a time; each may hold one message besides.
        max_publish_bytes: Bytes of publishes that wait for their ack; further ones wait.
        publish_timeout_s: Maximum seconds of a publish whose client sets no deadline.
        consumer_timeout_s: Seconds without a request for assignments after which a member leaves
            its consumer group.
        keepalive_s: After how long without a word a client is asked whether it is there.
        reflection: Whether gRPC reflection tells tools such as grpcurl which calls there are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: HostPort = "127.0.0.1:9292"
    max_connections: Annotated[int, Field(ge=1, le=65_536)] = 256
    max_message_bytes: Annotated[int, Field(ge=64 * 1024, le=64 * _MIB)] = 2 * _MIB
    max_request_bytes: Annotated[int, Field(ge=_MIB, le=1024 * _MIB)] = 64 * _MIB
    max_calls: Annotated[int, Field(ge=1, le=65_536)] = 1024
    max_calls_per_connection: Annotated[int, Field(ge=1, le=65_536)] = 256
    max_subscriptions: Annotated[int, Field(ge=1, le=65_536)] = 256
    max_publish_streams: Annotated[int, Field(ge=1, le=65_536)] = 128
    max_publish_bytes: Annotated[int, Field(ge=_MIB, le=1024 * _MIB)] = 64 * _MIB
    publish_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    consumer_timeout_s: Annotated[float, Field(ge=1, le=300)] = 15.0
    keepalive_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    reflection: bool = False

    @property
    def received_bytes_max(self) -> int:
        """Bytes of a message beyond which gRPC itself ends its call, and all that shares it."""
        return self.max_message_bytes + GRPC_BYTES_BEYOND
