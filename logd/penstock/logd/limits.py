"""Every bound of logd that is not a configuration key, with its unit and where it comes from."""

from typing import Final

STREAM_NAME_LENGTH_MAX: Final = 64
"""Characters; a stream's name is part of a directory name (NAME_MAX is 255 on Linux)."""

SUBJECT_LENGTH_MAX: Final = 1024
"""Bytes; below the 4096 bytes of a nats-server's control line (its `max_control_line`)."""

CONTROL_LINE_MAX: Final = 8192
"""Bytes of a NATS protocol line that names no subject."""

MESSAGE_WORD_MAX: Final = 65_535
"""Bytes of a subject, subscription id or reply subject that NATS delivers. The `max_control_line`
of nats-server, 4096 by default, bounds them together, and must not be set higher than this."""

MESSAGE_LINE_MAX: Final = 256 * 1024
"""Bytes of a NATS protocol line that names subjects; three words and two sizes fit."""

INFO_LINE_MAX: Final = 1024 * 1024
"""Bytes of an INFO line; it lists a cluster's addresses."""

MESSAGE_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes of one NATS message; nats-server refuses a larger `max_payload`."""

MESSAGE_ID_LENGTH_MAX: Final = 256
"""Bytes of a `Nats-Msg-Id`; a bound on what one entry of the window can hold."""

REQUEST_SIZE_MAX: Final = 64 * 1024
"""Bytes of one fetch or control request; the largest, a stream's creation, is below 4 KiB."""

UPLOADS_MAX: Final = 2
"""Requests with frames after them that a server reads or works on at a time: each holds one frame
of up to 64 MiB in memory."""

RESPONSE_HEADER_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of a response's JSON header; a listing of 10,000 streams is about 4 MiB."""

FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes a fetch may ask for; a larger request is cut to this. One frame may exceed it."""

FILTER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes a fetch with a subject filter, or of an encrypted stream, looks at and sends; a larger one
is cut to this. It bounds what a connection's payload takes in memory, and how long others that
filter wait. One frame may exceed it."""

VERIFY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of frames that one request of a verification reads, and the default; one frame may exceed
it. It bounds what they take in memory decoded, and how long another verification waits."""

ID_INDEX_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the index of ids of one partition: some 50 million records. The oldest half makes room,
and a client that searches reads what it stood for."""

ID_INDEX_STEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames that are indexed at a time; it bounds how long a question about ids waits."""

ID_CHARACTERS_MAX: Final = 128
"""Characters of an id that is indexed."""

IDS_PER_REQUEST_MAX: Final = 16
"""Ids of one request."""

DIFFERENCES_MAX: Final = 1000
"""Ranges in which replicas differ, after which a verification of a partition ends: it is known
then, and what is reported stays readable."""

FETCH_WAIT_MS_MAX: Final = 60_000
"""Milliseconds a fetch may wait for records; a longer request is cut to this."""

STREAMS_MAX: Final = 10_000
"""Streams of one logd where the configuration is silent; each has open files."""

FRAME_ROWS_MAX: Final = 16_384
"""Plain messages gathered into one frame."""

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""Payload bytes of plain messages gathered into one frame; one larger message has its own frame."""

APPEND_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of frames that are made of what waits for the disk before they are written, all of them at
once; one frame may exceed it. It bounds what a turn of a stream's writer takes in memory besides
the messages themselves.
"""

REOPEN_FREE_BYTES_MIN: Final = 8 * 1024 * 1024
"""Bytes of the file system that must be free before a log that failed for want of space is opened
again: two full frames of plain messages, and the small files beside the segments.
"""

RETENTION_SEGMENTS_PER_S_MAX: Final = 100
"""Segments of one stream that retention deletes a second. The smallest limit in bytes makes
segments of 256 KiB, so that it keeps up with 25 MiB/s; deleting a large file takes the disk longer.
"""

CONSUMER_LENGTH_MAX: Final = 128
"""Characters of a consumer's name."""

CURSORS_PER_REQUEST_MAX: Final = 200
"""Cursors committed by one request: with the longest names they fit into `REQUEST_SIZE_MAX`."""

CURSORS_PER_ANSWER_MAX: Final = 10_000
"""Cursors in one answer to `list_cursors`: at most 4 MiB of JSON."""

WORKERS_MAX: Final = 16
"""Threads for what blocks besides the writing of streams: opening and closing them, checkpoints.
They wait for the disk most of the time; file systems sync what several ask for together.
"""

WRITER_THREADS_MAX: Final = 64
"""Threads that write streams: each waits for the disk most of the time, and file systems sync what
several ask for together. With syncs of 10 ms a message to each of 1,000 streams is acked within
0.33 s by 64 threads or 128, 0.72 s by 16, 0.50 s by a thread for each stream."""

WRITE_HERE_BYTES_MAX: Final = 64 * 1024
"""Bytes of messages that the event loop itself writes and syncs; more goes to a thread."""

WRITE_HERE_NS_MAX: Final = 2_000_000
"""Nanoseconds of a sync, in the mean of the last ones, up to which the event loop itself syncs what
comes alone: a hop to a thread and back costs about half of that (docs/decisions/0111)."""

WRITE_HERE_NS_COUNTED_MAX: Final = 2 * WRITE_HERE_NS_MAX
"""Nanoseconds as which a longer sync counts in that mean, if it was no stall of the disk: the
scheduler lets a process wait for a core as long, whatever the disk does."""

DISK_STALL_NS_MIN: Final = 50_000_000
"""Nanoseconds from which on a sync counts as long as it took: then it is the disk that is slow."""

FRAMES_UNREMEMBERED_MAX: Final = 50_000
"""Frames after which a stream's producers are written down again: a start reads the headers of
those written since, after kill -9 too. Without, that took up to a minute for each GiB of frames of
one record.
"""

GAPS_KEPT: Final = 64
"""Ingest gaps that `/status` still shows after they ended; every one is in the log and counted."""

PRINCIPAL_LENGTH_MAX: Final = 256
"""Characters of a principal in a rule or a quota; an e-mail address has at most 254."""

ACL_RULES_MAX: Final = 5000
"""Rules of a logd or a cluster; every change of one rebuilds the index of all, some 10 ms."""

ACL_RULES_PER_REQUEST_MAX: Final = 40
"""Rules added or removed by one request: with the longest subjects they fit `REQUEST_SIZE_MAX`."""

ACL_RULES_PER_ANSWER_MAX: Final = 1000
"""Rules in one answer: below 2 MiB of JSON."""

ACTIVITY_WAITING_MAX: Final = 5000
"""Events that wait to be written to `__activity`, each up to `ACTIVITY_EVENT_BYTES_MAX`, most of
them some 300 bytes; further ones are counted and lost. Some minutes without a leader take that."""

ACTIVITY_EVENT_BYTES_MAX: Final = 8 * 1024
"""Bytes of one event's JSON; of a longer one what it was about is left out, and said so."""

ACTIVITY_BATCH_EVENTS_MAX: Final = 100
"""Events that are written at a time, below `PEER_FRAME_SIZE_MAX`."""

QUOTAS_MAX: Final = 1000
"""Principals with their own quota."""

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one command of the metadata group; the largest, a consumer group with most partitions,
is below it."""

NODES_MAX: Final = 1000
"""Nodes of a cluster, those that were removed included."""

ADDRESS_LENGTH_MAX: Final = 300
"""Characters of a node's address: a host name has at most 253, a port 5. Of a rack's name, too."""

PARTITIONS_PER_STREAM_MAX: Final = 1024
"""Partitions of one stream; the command that creates it names the replicas of each."""

REPLICAS_MAX: Final = 9
"""Replicas of one partition; each copies all of it from the leader."""

GROUPS_MAX: Final = 1000
"""Consumer groups; the coordinator keeps each in memory and looks at it when it changes."""

GROUP_MEMBERS_MAX: Final = 256
"""Members of one consumer group."""

GROUP_STREAMS_MAX: Final = 32
"""Streams that one member of a consumer group reads."""

GROUP_PARTITIONS_MAX: Final = 2048
"""Partitions that one consumer group reads: what is written down at each change of it is below
`COMMAND_BYTES_MAX`."""

PEER_FRAME_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of one message between nodes. Snapshots and batches of Raft entries are cut below it."""

PEER_UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that may wait for a peer that takes them slowly; beyond, Raft's messages to it are dropped,
which Raft sends again, and requests are refused."""

PEER_HELLO_SIZE_MAX: Final = 4096
"""Bytes of what a peer says first, when it is not known yet whose it is: a few names."""

PEER_UNAUTHENTICATED_MAX: Final = 256
"""Connections to the peer endpoint that have not said yet which node's they are, handshakes under
way included; a node makes two to each other one."""

PEER_OPEN_FILES_PART: Final = 16
"""Divisor of a small limit of open files; the result replaces `PEER_UNAUTHENTICATED_MAX`."""

PEER_CONNECTIONS_PER_NODE: Final = 4
"""Connections with each other node of a cluster: two that this node made, and two of the other."""

PEER_REQUESTS_MAX: Final = 1024
"""Requests of one peer under way at a time."""

REPLICATION_REQUEST_SIZE_MAX: Final = 1024 * 1024
"""Bytes of what a follower's node says at a time: at most 1000 fetches, and 1000 partitions that it
follows no more, each below 256."""

REPLICATION_PARTS_MAX: Final = 1000
"""Partitions in one response."""

REPLICATION_HEAD_SIZE_MAX: Final = 1024 * 1024
"""Bytes of a response's table: `REPLICATION_PARTS_MAX` parts, each below 256."""

REPLICATION_RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of frames in one response, whatever the configuration asks for; one frame may exceed it."""

REPLICATION_FRAMES_SIZE_MAX: Final = 128 * 1024 * 1024
"""Bytes of frames that a follower's node takes in one response: what was read for it, twice
`REPLICATION_RESPONSE_BYTES_MAX`, and one frame of the greatest size on top."""

RANGES_ASKED_MAX: Final = 64
"""Damaged ranges that other nodes are asked for at a time; an answer is `PEER_FRAME_SIZE_MAX`."""

DEDUP_COPIES_MAX: Final = 4
"""Copies of dedup state that a node has under way to others at a time; each takes a second or two
for a million ids. Who is refused asks again."""

DEDUP_COPY_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of one such copy; a million ids of 40 bytes are 70 MiB."""

REPLICATION_TAKEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of frames from one leader's node that replicas may have been given and have not written;
while there are more, no more is received. One response may exceed it."""

PRINCIPAL_NAME_LENGTH_MAX: Final = 256
"""Characters of a principal's name, or of a group's; an e-mail address has up to 254 (RFC 5321)."""

PRINCIPAL_GROUPS_MAX: Final = 256
"""Groups of one principal; tokens with more are refused, not cut."""

AUTHENTICATE_S: Final = 5.0
"""Seconds that a connection has to say whose it is, where that is required, once it has shaken
hands; round trips to the other side of the world take less."""

SEARCHES_WAITING_MAX: Final = 128
"""Tokens with unknown keys that wait until the issuer has answered, over all endpoints; later
requests are refused with the advice to come again."""

UNAUTHENTICATED_BESIDES: Final = 64
"""Connections of `fetch` that have not said whose they are, beside as many as there
may be of those that have: so all of them may come at once, after a restart."""

GRPC_BYTES_BEYOND: Final = 2 * 1024 * 1024 + 64 * 1024
"""Bytes of a message of gRPC's beyond `grpc.max_message_bytes` that are read to be refused: with
the default, values up to 4 MiB. A larger message gRPC refuses itself, and ends the whole stream of
publishes by that, which go-liftbridge opens once and never again."""

SECRET_LENGTH_MAX: Final = 16 * 1024
"""Characters of a token or an API key; HTTP servers take about as much in a header."""

KEY_SET_SIZE_MAX: Final = 256 * 1024
"""Bytes of a JWKS document; a key has less than 4 KiB, certificates included."""

KEY_SET_KEYS_MAX: Final = 64
"""Keys of a JWKS document; providers keep two to four."""

API_KEYS_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of the file of API keys: some 20,000 lines."""

TOKENS_REMEMBERED_MAX: Final = 4096
"""Verified tokens that need no verification when they come again; some 500 bytes each."""
