"""Every bound of the collector that is not a configuration key, with its unit and origin."""

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

UNIT_RECORDS_MAX: Final = (1 << 20) - 1
"""Records in one received unit: the index must fit the low 20 bits of a sequence."""

UNIX_FRAME_BYTES_MAX: Final = 8 * MIB
"""One framed message of the Unix socket; agreed with `penstock.specs`."""

UNIX_HEADER_BYTES_MAX: Final = 64 * KIB
"""The JSON line that opens a batch."""

UNIT_DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
"""A unit after decompression. Fluentd allows 256 MiB, Vector 100 MiB; ours bounds the memory that
one sender can make the collector use."""

RECORD_BYTES_MAX: Final = 256 * KIB
"""One record's line; agreed with `penstock.specs`."""

SERVICE_CHARACTERS_MAX: Final = 255
"""A service name made of a tag; the spec allows no more."""

LINE_BYTES_MAX: Final = 32 * KIB
"""One raw line: a record's body has at most so many characters. Longer lines are cut and marked."""

FILE_LINE_BYTES_MAX: Final = 1 * MIB
"""One line of a file: what is above `LINE_BYTES_MAX` becomes several records, in order."""

STRUCTURED_BYTES_MAX: Final = 128 * KIB
"""A longer line is not taken apart, though it be JSON: its record would be above
`RECORD_BYTES_MAX`, and in quarantine."""

RESTART_MIN_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
"""Seconds before a worker, a source or a source's program that ended is started again; they double
from the first to the last."""

RESTART_CALM_S: Final = 60.0
"""Seconds of a run after which a restart counts as the first again."""

READ_BYTES: Final = 64 * KIB
"""One read from a socket or pipe."""

READ_AHEAD_BYTES: Final = 16 * KIB
"""Bytes read ahead on a connection that its source does not read; one read may pass it."""

FILE_READ_BYTES: Final = 256 * KIB
"""One read from a file, at least a longest line's worth of progress."""

COMPRESSED_PIECES_MAX: Final = 256
"""Pieces of a compressed file that are fed in one step: at most 1 MiB, though it become nothing."""

DECOMPRESSED_BYTES_MAX: Final = 4096 * MIB
"""Bytes that a compressed file may become, unless its source says otherwise; far above what
rotation by size allows, and some ten seconds of a processor."""

FORWARD_MESSAGE_BYTES_MAX: Final = 16 * MIB
"""One Fluent forward message; Fluentd's default chunk is 8 MiB."""

FORWARD_BAD_ENTRIES_MAX: Final = 1000
"""Entries of one forward message that are refused one by one; a message of more is refused whole,
for its sender speaks something else, and may fit a million of them into a megabyte."""

FRAGMENTS_BYTES_MAX: Final = 256 * KIB
"""Forward messages of one connection that wait for the rest of a line that Docker cut; a body has
32 KiB at most, and others may come between its pieces."""

FRAGMENTS_WAIT_S: Final = 1.0
"""Maximum seconds that a fragment waits for the rest. Docker sends fragments as it reads them, and
until they are in the spool a kill loses them."""

DATAGRAM_BUFFER_BYTES: Final = 4 * MIB
"""Receive buffer that a UDP socket asks of the kernel, which gives no more than its own limit."""

DATAGRAM_QUEUE_BYTES_MAX: Final = 8 * MIB
"""Datagrams of one source that were received and not yet handed to the spool."""

CONNECTIONS_MAX: Final = 1024
"""Open connections of one listening source, unless it says otherwise."""

KUBERNETES_LIST_BYTES_MAX: Final = 32 * MIB
"""One page of a list of the Kubernetes API, or the list of a kubelet: a node has 110 pods by
default, 250 as a rule at most, and an object is bounded by etcd to 1.5 MiB."""

KUBERNETES_OBJECT_BYTES_MAX: Final = 8 * MIB
"""One change of a watch; etcd's 1.5 MiB, which JSON writes longer."""

PODS_MAX: Final = 4096
"""Pods whose facts are kept; a node has some hundred, and those that ended count until others need
their place."""

POD_LABELS_MAX: Final = 64
"""Labels of one pod or container that become attributes, and as many of its annotations."""

DOCKER_ANSWER_BYTES_MAX: Final = 4 * MIB
"""Docker's description of one container."""

FILES_OPEN_MAX: Final = 4096
"""Files that are open at once; others are opened when there is something to read in them."""

DESCRIPTORS_RESERVE: Final = 160
"""Descriptors that are kept back: the admin endpoint alone may have 128 connections at a time."""

RECEIVE_BYTES_MAX: Final = 128 * MIB
"""Default of `receive`: maximum bytes that all network sources hold and that are not durable yet.
"""

RECEIVE_SOURCE_BYTES_MAX: Final = 64 * MIB
"""One source's share of it."""

RECEIVE_BYTES_MIN: Final = 32 * MIB
"""The least that either may be: the largest forward message or batch, and some more."""

UNFINISHED_WAIT_S: Final = 10.0
"""Maximum seconds that a connection waits for room in the middle of a message, part of which it
holds."""

UNFINISHED_TIMEOUT_S: Final = 60.0
"""Maximum seconds without progress in the middle of a message."""

UNREAD_ANSWER_S: Final = 10.0
"""Maximum seconds that a closed connection is kept for a peer that has not read its answers."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Maximum seconds from a connection's start to the end of its TLS or shared-key handshake."""

HEAD_BYTES: Final = 1024
"""Bytes at a file's start that identify it; OpenTelemetry's collector uses 1000."""

CONTAINER_LINE_BYTES_MAX: Final = 256 * KIB
"""One line of a container log; Docker and containerd cut at 16 KiB, which JSON may make six times
as long, and attributes come on top."""

HELD_BYTES_MAX: Final = 1 * MIB
"""Bytes of one file's events that wait for lines which may belong to them."""

MULTILINE_LOOK_BYTES: Final = 1 * KIB
"""Bytes of a line that are looked at to tell whether it begins an event."""

PENDING_BYTES_MAX: Final = 16 * MIB
"""Records read from the spool and the files and not yet in the log; reading pauses above it."""

URGENT_PENDING_BYTES_MAX: Final = 4 * MIB
"""`PENDING_BYTES_MAX` for audit and event records, which have their own spool."""

REPLAY_RECORDS_MAX: Final = 100
"""Records of the quarantine that are put back between two syncs."""

CONTROL_LINE_BYTES_MAX: Final = 64 * KIB
"""One request on the admin socket."""

CONTROL_ANSWER_BYTES_MAX: Final = 6 * FORWARD_MESSAGE_BYTES_MAX + MIB
"""One line of an answer there: a forward message in quarantine, each byte escaped, as JSON text."""

WORKER_STOP_S: Final = 60.0
"""Maximum seconds, beside `drain_timeout_s`, in which a restarted worker ends. After that it is
killed, which loses nothing that it acknowledged."""

WORKER_START_S: Final = 120.0
"""Maximum seconds in which a worker restarted with another configuration becomes ready: it reads
its spool and the files of tables first."""

REPLAY_ANSWER_S: Final = 600.0
"""Maximum seconds in which a worker puts its quarantine back: some hundred thousand records."""

QUARANTINE_LINE_S: Final = 120.0
"""Maximum seconds until a worker's next line of its quarantine, which it reads from disk."""

CONTROL_CONNECTIONS_MAX: Final = 16
"""Open connections of the admin socket."""

TAP_RECORDS_MAX: Final = 1000
"""Records that wait for a reader of `tap`; further ones pass by it and are counted."""

SENDERS_MAX: Final = 10_000
"""Senders whose last sequence is kept; the one that was silent longest is forgotten."""

NATS_OVERHEAD_BYTES: Final = 1 * KIB
"""Left free below the server's max_payload for envelope and headers."""

HTTP_HEAD_BYTES_MAX: Final = 32 * KIB
"""Request line and headers; most servers allow 8 to 16 KiB, agents add long tokens."""

HTTP_RETRY_AFTER_S: Final = 2
"""After so long senders by HTTP may try again when there is no room."""

HTTP_LINGER_S: Final = 1.0
"""Maximum seconds in which the rest of a refused HTTP request is read and discarded."""

REQUEST_TIMEOUT_S: Final = 60.0
"""Time from the end of one HTTP request to the end of the next on one connection."""

OTLP_CALLS_MAX: Final = 256
"""gRPC requests of one source at once; more are answered RESOURCE_EXHAUSTED."""

REQUEST_RECORDS_MAX: Final = 100_000
"""Records in one request; OTLP's senders have 512 in a batch by default, Fluent Bit thousands."""

REQUEST_ROOM_WAIT_S: Final = 5.0
"""Time in all that a request waits to be read and decoded; OTLP's SDKs wait 10 s for an answer."""

OTLP_RETRY_AFTER_S: Final = 2
"""After so long OTLP senders may try again when there is no room."""

STATSD_LINE_BYTES_MAX: Final = 8 * KIB
"""One sample, event or check; DogStatsD's datagrams have at most as many."""

STATSD_RATE_MIN: Final = 1e-6
"""A sample of a smaller rate would stand for more than counts of 64 bits can add up."""

STATSD_TAGS_MAX: Final = 64
"""Tags of one sample."""

STATSD_SET_MEMBERS_MAX: Final = 100_000
"""Different members of all sets of a source within one flush interval."""

SCRAPE_BYTES_MAX: Final = 16 * MIB
"""One exporter's answer; some hundred thousand samples."""

JOURNAL_ENTRY_BYTES_MAX: Final = 256 * KIB
"""One entry of the journal as JSON; a longer one is cut, and goes to quarantine."""

SPOOL_RETRY_S: Final = 1.0
"""Seconds after which a source offers a spool again what the disk did not take."""


@dataclass(frozen=True, slots=True)
class SpoolWriterLimits:
    """Bounds of one source on what its senders leave unfinished, and on its own waiting.

    No configuration key sets them. They are a source's input all the same, so that each bound can
    be reached with a few records and in no time; see the constants for what each is.
    """

    spool_retry_s: float = SPOOL_RETRY_S
    unfinished_wait_s: float = UNFINISHED_WAIT_S
    unfinished_timeout_s: float = UNFINISHED_TIMEOUT_S
    unread_answer_s: float = UNREAD_ANSWER_S
    datagram_queue_bytes_max: int = DATAGRAM_QUEUE_BYTES_MAX
    fragments_wait_s: float = FRAGMENTS_WAIT_S
    request_room_wait_s: float = REQUEST_ROOM_WAIT_S
    otlp_max_calls: int = OTLP_CALLS_MAX
    max_request_records: int = REQUEST_RECORDS_MAX


SPOOL_WRITER_LIMITS: Final = SpoolWriterLimits()
"""Limits of the spool writers of all sources."""
