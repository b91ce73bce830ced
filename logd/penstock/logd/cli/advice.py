"""What to do about an error: the fix that a command prints, by code and situation."""

from collections.abc import Mapping
from typing import Final

from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NoAnswerError,
    RefusedError,
    UnsettledError,
)

FIXES: Final[Mapping[str, str]] = {
    "BAD_BACKUP": "make another backup: these are not the frames of one",
    "BAD_BATCH": "publish with a client of this version: the batch is not as logd reads it",
    "BAD_CONSUMER": "choose a name such as billing or team-a/billing",
    "BAD_GROUP": "choose a name such as billing or team-a/billing",
    "BAD_HEADER": "publish without that header, or correct it",
    "BAD_NAME": "choose a name of letters, digits, _ and -",
    "BAD_NODE": "list the nodes: penstock logd cluster info",
    "BAD_OPTIONS": "see the options: penstock logd streams create --help",
    "BAD_QUOTA": "see what a quota may say: penstock logd quotas set --help",
    "BAD_REPLICAS": "list the nodes: penstock logd cluster info",
    "BAD_REQUEST": "correct the request",
    "BAD_RULE": "see what a rule may say: penstock logd acl --help",
    "BAD_SUBJECT": "choose a subject such as telemetry.logs.>",
    "BAD_TEXT": "write it without control characters",
    "BAD_TLS_FILE": "name readable PEM files: --tls-ca, --cert, --key, for NATS --nats-ca, ...",
    "BAD_TOKEN_FILE": "name a file with a token or an API key in one line",
    "BELOW_MIN_ISR": "ask for a smaller min_isr, or for more replicas",
    "BUSY": "publish more slowly, or give it more time with --retry-s",
    "CORRUPT": "read past it with --skip-damaged; what is damaged: penstock logd gaps",
    "CURSOR_BEHIND": "another consumer of that name has gone further; use another name",
    "DATA_NOT_GONE": "ask again in a moment: the nodes still delete the stream of before",
    "ENCRYPTION_UNAVAILABLE": "give logd a master key: `encryption` in its configuration",
    "FENCED": "begin again: another member of the group has the partition now",
    "GROUP_ACTIVE": "see who they are: penstock logd groups info NAME",
    "GROUP_REFUSED": "see the group: penstock logd groups info NAME",
    "HAS_LEADER": "nothing needs to be lost: it is led",
    "HEADERS_TOO_LARGE": "publish fewer headers, or raise the stream's header_bytes_max",
    "INTERNAL": "this is a bug in Penstock: please report it with the log of logd",
    "IN_SYNC_ALIVE": "wait a second: it is about to be led, and nothing is lost",
    "IS_LEADER": "let another node lead first: penstock logd streams move NAME",
    "IS_REPLICA": "see who has it: penstock logd streams info NAME",
    "KEY_UNAVAILABLE": "name the master key in `encryption` of logd's configuration",
    "LAST_IN_ISR": "wait until another replica is in sync: penstock logd streams ls",
    "MESSAGE_TOO_LARGE": "publish less at a time, or raise the stream's message_bytes_max",
    "NATS_MAX_PAYLOAD": "publish less at a time, or raise max_payload of the NATS server",
    "NATS_REFUSED": "permit that subject to logd's user in the configuration of nats-server",
    "NODE_REMOVED": "list the nodes: penstock logd cluster info",
    "NOT_ACTIVE": "choose other nodes, or: penstock logd cluster undrain NODE",
    "NOT_CLUSTERED": "ask a logd whose configuration has `cluster`",
    "NOT_DRAINED": "penstock logd cluster drain NODE, and wait until it has no replicas",
    "NOT_ENOUGH_NODES": "ask for fewer replicas, or start more nodes",
    "NOT_ENOUGH_REPLICAS": "see which nodes are missing: penstock logd cluster info",
    "NOT_HERE": "ask again: a leader is being found; if it lasts: penstock logd cluster info",
    "NOT_LEADER": "ask again: a leader is being found; if it lasts: penstock logd cluster info",
    "NOT_READY": "ask again in a moment, or name other nodes with --server",
    "NOT_RESTORING": "restore into a stream that is not there yet: --as NAME",
    "NO_ATOMIC_PUBLISH": "publish without Nats-Batch headers: logd stores no atomic batches",
    "NO_COUNTERS": "publish without that header: logd has no counters",
    "NO_HEIR": "list the nodes: penstock logd cluster info",
    "NO_LEADER": "see the nodes: penstock logd cluster info",
    "NO_REPLICA": "start one of these nodes",
    "NO_ROLLUP": "publish without that header: logd has no roll-ups; see compaction",
    "NO_SCHEDULES": "publish without that header: logd schedules no messages",
    "NO_SUBJECT_SEQUENCE": "publish without that header: logd counts no sequences by subject",
    "NO_TTL": "publish without that header: a stream's retention says how long records stay",
    "OTHER_INCARNATION": "ask again: the stream was deleted and made again",
    "OUT_OF_RANGE": "ask for an offset in that range, or earliest or latest",
    "PERMISSION_DENIED": "ask the administrator of logd for that rule; see: penstock logd acl test",
    "PLAIN_TOKEN": "connect with TLS: --tls, or --tls-ca FILE",
    "QUOTA_EXCEEDED": "ask again later, or for more: penstock logd quotas ls",
    "READ_ONLY": "let it be written to: penstock logd streams writable NAME; or end its restore",
    "RECORDS_LOST": "begin again at the offset that it names: an election lost what was there",
    "RESERVED_NAME": "choose a name that does not begin with __",
    "SEQUENCE_GAP": "begin again: a batch of this producer before it is not stored",
    "STALE_VERSION": "somebody else was faster: see what there is now, and ask again",
    "STORAGE_FAILED": "see why: penstock logd streams ls; then: penstock logd streams open NAME",
    "STREAM_DELETING": "start those nodes, or drain and remove them: penstock logd cluster info",
    "STREAM_DIFFERS": "use its options or another name, or: penstock logd streams alter NAME",
    "STREAM_FULL": "see its limits: penstock logd streams info NAME",
    "STREAM_RECREATED": "ask again: the offsets are those of the stream that was",
    "TOO_FEW_REPLICAS": "ask for more replicas",
    "TOO_LARGE": "send less at a time",
    "TOO_MANY_CONNECTIONS": "ask again later, or raise connections_max in logd's configuration",
    "TOO_MANY_CURSORS": "delete cursors that nobody needs: penstock logd cursors ls",
    "TOO_MANY_GROUPS": "stop groups that nobody needs: penstock logd groups ls",
    "TOO_MANY_MEMBERS": "start fewer members: penstock logd groups info NAME",
    "TOO_MANY_NODES": "remove nodes that are no more: penstock logd cluster remove NODE",
    "TOO_MANY_PARTITIONS": "ask for fewer partitions, or delete streams that nobody needs",
    "TOO_MANY_QUOTAS": "remove quotas that nobody needs: penstock logd quotas ls",
    "TOO_MANY_REQUESTS": "ask later, or raise fetches_outstanding_max in logd's configuration",
    "TOO_MANY_RULES": "remove rules that nobody needs: penstock logd acl ls",
    "TOO_MANY_STREAMS": "delete streams that nobody needs: penstock logd streams ls",
    "UNAUTHENTICATED": "show who you are: --token-file FILE, or --cert FILE and --key FILE",
    "UNAVAILABLE": "see the nodes, penstock logd cluster info, and their logs; then ask again",
    "UNCLEAN_NOT_ALLOWED": "start a node that was in sync: penstock logd streams info NAME",
    "UNKNOWN_API": "upgrade logd or this command: they are of different versions",
    "UNKNOWN_DISKS": "start these nodes: the cluster then notes the directory of each by itself",
    "UNKNOWN_FORMAT": "use the version of Penstock that wrote it, or a later one",
    "UNKNOWN_GROUP": "list those with members: penstock logd groups ls",
    "UNKNOWN_NODE": "list the nodes: penstock logd cluster info",
    "UNKNOWN_PARTITION": "see which it has: penstock logd streams info NAME",
    "UNKNOWN_PRODUCER": "begin again: logd does not know this producer any more",
    "UNKNOWN_QUOTA": "list the quotas: penstock logd quotas ls",
    "UNKNOWN_RULE": "list the rules: penstock logd acl ls",
    "UNKNOWN_STREAM": "list the streams: penstock logd streams ls",
    "UNKNOWN_VERSION": "upgrade logd or this command: they are of different versions",
    "WRONG_KEY": "give logd the master key that the stream was written with, and open it again",
    "WRONG_LAST_MESSAGE_ID": "see what was stored last: penstock logd tail STREAM",
    "WRONG_LAST_SEQUENCE": "see what was stored last: penstock logd tail STREAM",
    "WRONG_OFFSET": "somebody else restores it, too; begin again, it goes on where it is",
    "WRONG_STREAM": "see which streams store the subject: penstock logd match SUBJECT",
}
"""What to do about a refusal, by its code."""

NOT_OPEN_FIXES: Final[Mapping[str, str]] = {
    "CORRUPT": "stop logd, then see the damage: penstock logd check DATA_DIR",
    "WRONG_KEY": "give logd the master key that the stream was written with, then: "
    "penstock logd streams open NAME",
    "KEY_UNAVAILABLE": "name the master key in the configuration of logd and start it again, or see"
    " to the key's file, then: penstock logd streams open NAME",
    "UNKNOWN_FORMAT": "start the version of Penstock that wrote it, or a later one",
    "UNAVAILABLE": "see the log of logd and its disk, then: penstock logd streams open NAME",
}
"""What to do about a stream whose log cannot be opened, by the cause."""

_UNKNOWN_CALLER: Final[Mapping[str, str]] = {
    "busy": "ask again later",
    "certificate": "show a certificate of the authority that logd trusts: --cert FILE",
    "expired": "get a new one, and name its file: --token-file FILE",
    "not_taken": "show an API key or a certificate, as `auth` in logd's configuration says",
    "not_yet": "wait until it is valid, and see that the clocks agree",
    "revoked": "get a new one, and name its file: --token-file FILE",
    "stale_keys": "see why logd does not reach the issuer of tokens: the log of logd",
    "unknown_key": "name the file with a key that logd knows; penstock logd keys new makes one",
}
"""What to do when logd does not know who asks, by the reason."""

_NO_ANSWER: Final[Mapping[str, str]] = {
    "certificate": "name the authority of its certificate: --tls-ca FILE",
    "client_certificate": "show a certificate: --cert FILE, and --key FILE",
    "closed": "see that --server is logd's fetch address; if it has TLS: --tls, or --tls-ca FILE",
    "no_tls": "leave out --tls, --tls-ca and --cert, or name logd's address with TLS",
    "silent": "see the log of logd, or name other nodes with --server",
    "tls": "see the log of logd, and the files given with --tls-ca, --cert and --key",
    "unreachable": "start logd, or name its fetch address with --server",
}
"""What to do when logd did not answer, by the cause."""


def advice(error: LogdError) -> str:
    """The fix for an error of a client."""
    match error:
        case RefusedError():
            return _for_refusal(error)
        case NoAnswerError():
            return _NO_ANSWER.get(error.cause, _NO_ANSWER["unreachable"])
        case UnsettledError():
            return FIXES["NOT_HERE"]
        case CorruptError():
            return "see that --server is logd's fetch address, then the log of logd"
        case _:
            return FIXES["UNAVAILABLE"]


def _for_refusal(error: RefusedError) -> str:
    cause = error.detail.get("cause")
    if cause is not None:
        return NOT_OPEN_FIXES.get(str(cause), NOT_OPEN_FIXES["UNAVAILABLE"])
    fix = FIXES.get(error.code, "see what the message names, and the log of logd")
    if error.code == "UNAUTHENTICATED":
        return _UNKNOWN_CALLER.get(str(error.detail.get("reason")), fix)
    return fix
