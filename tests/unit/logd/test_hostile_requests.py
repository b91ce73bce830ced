"""Whatever a caller of the fetch endpoint asks, it is answered or refused with a code of its own.

`INTERNAL` is what a request gets that hit a bug: it is none of the codes that are expected here.
"""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from penstock.logd.api.middleware import GuardedApi
from penstock.logd.api.operations import OPERATIONS
from penstock.logd.api.protocol import decode_request, encode_response
from penstock.logd.api.server import ResponseSlot
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.limits import REQUEST_SIZE_MAX
from penstock.logd.metadata.streams import StreamConfig, check_stream_name
from penstock.logd.security.principal import UnauthenticatedError
from tests.support.fuzzing import SEED, any_value, cases, mutated, mutated_bytes
from tests.support.guarded_api import ROOT, guarded, open_api
from tests.support.identities import Callers
from tests.support.one_node import one_node

CURSOR: Final = {"consumer": "c", "stream": "logs", "partition": 0, "offset": 0}
CONFIG: Final = {
    "name": "more",
    "subject": "more.>",
    "retention": {"age_s": 60},
    "partitions": 1,
    "encryption": "none",
}
BEAT: Final = {
    "group": "g",
    "member": "m",
    "streams": ["logs"],
    "session_ms": 10_000,
    "sequence": 1,
    "joining": True,
    "epoch": 0,
    "held": [{"stream": "logs", "incarnation": "0", "partitions": [0]}],
}
RULE: Final = {"principal": "p", "effect": "allow", "action": "read", "resource": "logs-*"}
QUOTA: Final = {"principal": "p", "bytes_in_per_s": 1000, "requests_per_s": 5, "streams": 1}
SOUND: Final[tuple[dict[str, Any], ...]] = (
    {"api": "fetch", "stream": "logs", "offset": 0, "bytes_max": 1000, "subject": "t.a"},
    {"api": "fetch", "stream": "logs", "partition": 0, "offset": 0, "log_epoch": 1},
    {"api": "offsets", "stream": "logs", "at": "latest"},
    {"api": "offsets", "stream": "logs", "at": 1_700_000_000_000_000_000},
    {"api": "streams", "stream": "logs", "internal": True},
    {"api": "match", "subject": "t.a"},
    {"api": "create_stream", "config": CONFIG},
    {"api": "open_stream", "stream": "logs"},
    {"api": "delete_stream", "stream": "more"},
    {"api": "set_cursor", "cursors": [CURSOR], "rewind": True},
    {"api": "set_cursor", "cursors": [CURSOR | {"incarnation": "0", "epoch": 1}], "member": "m"},
    {"api": "get_cursor", "consumer": "c", "stream": "logs", "partition": 0},
    {"api": "list_cursors", "consumer": "c", "after": ["c", "logs", 0]},
    {"api": "delete_cursor", "consumer": "c", "stream": "logs"},
    {"api": "cluster"},
    {"api": "alter_stream", "stream": "logs", "options": {"retention": {"bytes": 1 << 20}}},
    {"api": "set_mode", "stream": "logs", "paused": True},
    {"api": "drain", "node": "n", "undo": False},
    {"api": "remove_node", "node": "n"},
    {"api": "move", "stream": "logs", "partition": 0, "replicas": ["n"]},
    {"api": "observe", "stream": "logs", "partition": 0, "observers": []},
    {"api": "elect", "stream": "logs", "partition": 0, "lose_records": True},
    {"api": "rebalance"},
    {"api": "purge", "stream": "logs", "partition": 0, "before": 1},
    {"api": "step_down", "target": None},
    {"api": "verify", "stream": "logs", "offset": 0, "upto": 10, "records": True},
    {"api": "find_ids", "stream": "logs", "ids": ["a"], "offset": 0, "upto": 10},
    {"api": "restore", "stream": "logs", "partition": 0, "upload": 100},
    {"api": "gaps"},
    {"api": "acls", "after": "1"},
    {"api": "put_acls", "rules": [RULE], "based_on": 0},
    {"api": "delete_acls", "rules": ["1"], "based_on": 0},
    {"api": "test_acl", "principal": "p", "groups": ["g"], "action": "read", "resource": "logs"},
    {"api": "who_can", "action": "read", "resource": "subject:t.>"},
    {"api": "quotas"},
    {"api": "put_quota", "quota": QUOTA, "based_on": 0},
    {"api": "delete_quota", "principal": "p", "based_on": 0},
    {"api": "authenticate", "token": "penstock-key.p.x"},
    {"api": "group_beat"} | BEAT,
    {"api": "group_leave", "group": "g", "member": "m"},
    {"api": "groups", "group": "g"},
)


def hostile(rng: Random) -> dict[str, Any]:
    document = mutated(rng, rng.choice(SOUND)) | {"wait_ms_max": 0}
    if document.get("api") != "fetch":
        del document["wait_ms_max"]
    if rng.random() < 0.02:
        document["api"] = any_value(rng)
    return document


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def ask(found: GuardedApi, document: dict[str, Any]) -> str:
    """The code it is refused with; empty when it is answered."""
    try:
        request = decode_request(json.dumps(document, allow_nan=False).encode())
        if request["api"] in ("cancel", "authenticate"):  # the connection itself answers
            return ""
        response = await found.answer(request, ResponseSlot(asyncio.Lock()))
    except RefusedError as error:
        return error.code
    except UnavailableError:
        return "UNAVAILABLE"
    encode_response(response.header | {"id": request.get("id", 0)}, response.payload_length)
    return ""


def test_every_api_has_a_sound_request_to_begin_with() -> None:
    assert OPERATIONS.keys() - {"cancel"} == {document["api"] for document in SOUND}
    for document in SOUND:
        row = OPERATIONS[document["api"]]
        assert row.read(row.read(document).document()) == row.read(document)


async def test_nearly_right_requests_are_answered_or_refused_with_a_code(tmp_path: Path) -> None:
    codes = set[str]()
    async with one_node(tmp_path, StreamConfig(name="logs", subject="t.>")) as node:
        found = open_api(node.engine)
        for number in range(cases(1500)):
            rng = Random(f"{SEED}-{number}")
            document = hostile(rng)
            try:
                codes.add(await ask(found, document))
            except Exception as error:
                error.add_note(f"seed {SEED}, case {number}: {document!r}"[:2000])
                raise
        assert await ask(found, {"api": "cluster"}) == ""
    assert {"", "BAD_REQUEST", "UNKNOWN_STREAM", "UNKNOWN_NODE"} <= codes
    assert "INTERNAL" not in codes
    assert names_in(tmp_path) <= {"cluster", "held", "streams", "trash"}


async def test_whoever_administers_is_answered_or_refused_with_a_code(tmp_path: Path) -> None:
    codes = set[str]()
    async with guarded(tmp_path, StreamConfig(name="logs", subject="t.>")) as found:
        for number in range(cases(1000)):
            document = hostile(Random(f"{SEED}-{number}"))
            try:
                request = decode_request(json.dumps(document, allow_nan=False).encode())
                if request["api"] in ("cancel", "authenticate"):  # the connection itself answers
                    continue
                header = await found.ask(ROOT, **request)
                encode_response(header | {"id": request.get("id", 0)})
                codes.add("")
            except RefusedError as error:
                codes.add(error.code)
            except UnavailableError:
                codes.add("UNAVAILABLE")
            except Exception as error:
                error.add_note(f"seed {SEED}, case {number}: {document!r}"[:2000])
                raise
        assert await found.ask(ROOT, "quotas")
    assert {"", "BAD_REQUEST", "STALE_VERSION", "UNKNOWN_RULE"} <= codes, codes
    assert "INTERNAL" not in codes


async def test_what_is_no_token_is_nobodys(tmp_path: Path) -> None:
    known, reasons, shown = Callers(tmp_path), set[str](), list[str]()
    authenticator, sound = known.authenticator(), (known.token(), known.key)
    for number in range(cases(1000)):
        rng = Random(f"{SEED}-{number}")
        text = mutated_bytes(rng, rng.choice(sound).encode()).decode("utf-8", "replace")
        if rng.random() < 0.1:
            text = str(any_value(rng))
        if text in sound:
            continue
        try:
            found = await authenticator.secret_later(text)
            assert found.principal.name in {"alice", "batch"}, number
        except UnauthenticatedError as error:
            reasons.add(error.reason)
            if len(text) > 8 and text in str(error):
                shown.append(text)
    assert shown == []
    assert {"malformed", "unknown_key", "signature"} <= reasons, reasons


def test_bytes_that_are_nearly_requests_are_decoded_or_refused() -> None:
    rng, codes = Random(SEED), set[str]()
    for _ in range(cases(3000)):
        data = mutated_bytes(rng, json.dumps(hostile(rng)).encode())
        try:
            assert isinstance(decode_request(data)["api"], str)
        except RefusedError as error:
            codes.add(error.code)
    assert codes == {"BAD_REQUEST"}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"api":['])
def test_nesting_as_deep_as_a_request_is_long_is_refused(opening: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        decode_request((opening * REQUEST_SIZE_MAX)[:REQUEST_SIZE_MAX])
    assert refused.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../x", "/x", "a/b", "a\\b", "a\x00", "a.b", "x" * 65, "", " ", "a\n", "é", "%2e"],
)
def test_no_stream_name_leads_out_of_its_directory(name: str) -> None:
    with pytest.raises(RefusedError) as refused:
        check_stream_name(name)
    assert refused.value.code == "BAD_NAME"
