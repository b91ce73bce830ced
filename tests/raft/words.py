"""Messages and members in few words, for the cases."""

from typing import Any

from penstock.logd.raft import Message
from penstock.logd.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotChunk,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)


def message_words(message: Message) -> str:
    """`a -> b t3 AppendRequest after 4/2: 2 entries, commit 4`."""
    body = message.body
    text = _body_words(body)
    kind = type(body).__name__
    return f"{message.sender} -> {message.recipient} t{message.term} {kind}{text}"


def _body_words(body: object) -> str:  # noqa: PLR0911 - a line for each kind
    match body:
        case VoteRequest(pre, transfer, last_index, last_term):
            flags = " pre" * pre + " transfer" * transfer
            return f"{flags} last {last_index}/{last_term}"
        case VoteResponse(pre, granted):
            return f"{' pre' * pre} {'granted' if granted else 'refused'}"
        case AppendRequest(index, term, entries, commit):
            return f" after {index}/{term}: {len(entries)} entries, commit {commit}"
        case AppendResponse(index):
            return f" up to {index}"
        case AppendRejection(index, hint_index, hint_term):
            return f" of {index}, maybe {hint_index}/{hint_term}"
        case Heartbeat(commit, number):
            return f" {number}, commit {commit}"
        case HeartbeatResponse(number):
            return f" {number}"
        case SnapshotChunk(index, index_term, _, total, offset, data):
            return f" {index}/{index_term} bytes {offset} to {offset + len(data)} of {total}"
        case SnapshotResponse(index, offset):
            return f" {index} has {offset}"
        case _:
            return ""


def status_words(status: dict[str, Any], applied: int) -> str:
    """`leader of term 3, last 5, commit 4, applied 4; voters a b c`."""
    text = f"{status['role']} in term {status['term']}, voted {status['vote'] or 'for nobody'}"
    text += f", follows {status['leader'] or 'nobody'}, last {status['last']}"
    text += f", commit {status['commit']}, applied {applied}"
    text += f"; voters {' '.join(status['voters'])}" if status["voters"] else "; no voters"
    return text + (f"; learners {' '.join(status['learners'])}" if status["learners"] else "")
