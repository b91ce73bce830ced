"""Records by HTTP, from clients that applications use: requests, and curl."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import zstandard

from penstock.collector.limits import KIB, LINE_BYTES_MAX, MIB
from penstock.collector.sources.http import HttpSettings, HttpSource
from tests.support.receiving import listening
from tests.support.spool_writer import SpoolingIntake

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain; charset=utf-8"}
LINES = {"content-type": "application/x-ndjson"}
ONE = '{"message": "one", "level": "error"}'
TWO = '{"message": "two\\nlines", "level": "info"}'


class Sender:
    """Sends to one source, on a thread.

    Args:
        spool_writer: What the source has made durable.
    """

    def __init__(self, endpoint: str, spool_writer: SpoolingIntake) -> None:
        self.url = f"http://{endpoint}/"
        self.spool_writer = spool_writer

    async def post(self, data: Any, headers: dict[str, str], path: str = "", **more: Any) -> Any:
        return await asyncio.to_thread(
            requests.post, self.url + path, data=data, headers=headers, timeout=20, **more
        )

    @property
    def bodies(self) -> list[str]:
        """Bodies of the records in the spool."""
        records = (one for unit in self.spool_writer.decoded() for one in unit.lines)
        return [json.loads(record)["body"] for record in records]

    @property
    def counted(self) -> dict[str, int]:
        return dict(+self.spool_writer.account.notes)


@asynccontextmanager
async def sending(directory: Path, spool: Any = None, **options: Any) -> AsyncIterator[Sender]:
    section = HttpSettings.model_validate({"type": "http", "listen": "127.0.0.1:0", **options})

    def make(spool_writer: SpoolingIntake) -> HttpSource:
        return HttpSource(section, {}, spool_writer=spool_writer)

    async with listening(directory, make, **(spool or {})) as (source, spool_writer):
        yield Sender(source.endpoint, spool_writer)


@pytest.mark.parametrize(
    ("headers", "data", "bodies"),
    [
        (JSON, ONE, ["one"]),
        (JSON, f"[{ONE}, {TWO}]", ["one", "two\nlines"]),
        (JSON, '[{"some": "object"}, 5]', ['{"some":"object"}', "5"]),
        (JSON, "[]", []),
        (LINES, f"{ONE}\n\n{TWO}\r\n", ["one", "two\nlines"]),
        (TEXT, "one\r\ntwo\n", ["one", "two"]),
        (TEXT, "", []),
    ],
)
async def test_records_are_durable_when_they_are_accepted(
    tmp_path: Path, headers: dict[str, str], data: str, bodies: list[str]
) -> None:
    async with sending(tmp_path) as sender:
        answer = await sender.post(data, headers)
        assert (answer.status_code, answer.json()) == (200, {"accepted": len(bodies)})
        assert sender.bodies == bodies


async def test_what_a_record_has_not_of_a_request_is_counted(tmp_path: Path) -> None:
    async with sending(tmp_path) as sender:
        for kind in "text/plain; charset=utf-8", 'text/plain; charset="UTF-8"', "text/plain; a=b":
            assert (await sender.post("a", {"content-type": kind})).status_code == 200
        assert sender.counted == {}
        head = {"content-type": "text/plain; charset=latin1"}
        assert (await sender.post("a", head, "?env=prod")).status_code == 200
        assert sender.counted == {"queries_ignored": 1, "charsets_ignored": 1}


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)],
)
async def test_a_body_may_be_compressed(tmp_path: Path, coding: str, pack: Any) -> None:
    async with sending(tmp_path) as sender:
        headers = {**TEXT, "content-encoding": coding}
        assert (await sender.post(pack(b"one"), headers)).status_code == 200
        assert (await sender.post(b"no such data", headers)).status_code == 400
        bomb = await sender.post(pack(b"x" * (5 * MIB)), headers)
        assert bomb.status_code == 413
        assert sender.bodies == ["one"]


@pytest.mark.parametrize(
    ("headers", "data", "status", "message"),
    [
        (JSON, '{"message": ', 400, "unexpected end of data"),
        (LINES, '{"a": 1}\n{"a"\n', 400, "record 1: "),
        (TEXT, "one\n" + "x" * (LINE_BYTES_MAX + 1), 413, "record 1 is above 32768 bytes"),
        (TEXT, "x" * (4 * MIB + 1), 413, "the body is above 4194304 bytes"),
        ({"content-type": "image/png"}, "x", 415, "content-type 'image/png' is none of"),
        ({**TEXT, "content-encoding": "br"}, "x", 415, "content-encoding 'br' is none of"),
    ],
)
async def test_of_a_request_that_is_refused_nothing_is_kept(
    tmp_path: Path, headers: dict[str, str], data: str, status: int, message: str
) -> None:
    async with sending(tmp_path) as sender:
        answer = await sender.post(data, headers)
        assert answer.status_code == status
        assert message in answer.json()["error"]
        assert "retry-after" not in answer.headers, "it must not come again"
        assert sender.bodies == []


async def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with sending(tmp_path, path="/logs") as sender:
        assert (await sender.post("one", TEXT, "logs")).status_code == 200
        assert (await sender.post("two", TEXT, "other")).status_code == 404
        answer = await asyncio.to_thread(requests.get, sender.url + "logs", timeout=20)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert sender.bodies == ["one"]


@pytest.mark.parametrize(
    ("auth", "good", "bad", "challenge"),
    [
        ({}, {"authorization": "Bearer secret"}, {"authorization": "Bearer other"}, "Bearer"),
        ({"scheme": "header", "header": "X-Key"}, {"x-key": "secret"}, {"x-key": "secre"}, None),
    ],
)
async def test_a_sender_shows_the_token(
    tmp_path: Path, auth: Any, good: Any, bad: Any, challenge: str | None
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with sending(tmp_path, auth={"token_file": token, **auth}) as sender:
        assert (await sender.post("one", {**TEXT, **good})).status_code == 200
        for shown in (TEXT | bad, TEXT):
            answer = await sender.post("two", shown)
            assert answer.status_code == 401
            assert answer.headers.get("www-authenticate") == challenge
        token.unlink()
        answer = await sender.post("three", {**TEXT, **good})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert sender.bodies == ["one"]
        assert sender.counted == {"requests_unauthenticated": 2, "requests_deferred": 1}


async def test_a_sender_shows_its_name_and_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    auth = {"scheme": "basic", "username": "shop", "token_file": tmp_path / "password"}
    async with sending(tmp_path, auth=auth) as sender:
        assert (await sender.post("one", TEXT, auth=("shop", "secret"))).status_code == 200
        assert (await sender.post("two", TEXT, auth=("shop", "other"))).status_code == 401
        assert (await sender.post("two", {**TEXT, "authorization": "Basic ?"})).status_code == 401
        assert sender.bodies == ["one"]


async def test_an_empty_token_lets_nobody_send(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    async with sending(tmp_path, auth={"token_file": tmp_path / "token"}) as sender:
        answer = await sender.post("one", {**TEXT, "authorization": "Bearer "})
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "auth",
    [{"scheme": "basic"}, {"scheme": "header"}, {"username": "shop"}, {"header": "x-key"}],
)
def test_what_a_scheme_needs_is_checked(auth: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="belongs to"):
        HttpSettings.model_validate({"type": "http", "auth": {"token_file": "/a", **auth}})


async def test_a_full_spool_is_no_success(tmp_path: Path) -> None:
    options = {"drop_newest": True, "spool_bytes": 64 * KIB}
    async with sending(tmp_path, options) as sender:
        body, statuses = "\n".join(["x" * 10_000] * 2), []
        while (answer := await sender.post(body, TEXT)).status_code != 503:
            statuses.append(answer.status_code)
        assert answer.headers["retry-after"] == "2"
        assert answer.json() == {"error": "the spool is full"}
        assert len(sender.bodies) == 2 * statuses.count(200), "what was accepted is there"
        assert sender.counted == {"requests_deferred": 1, "refused_spool_full": 2}


async def test_curl_sends_a_file(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("one\ntwo\n")
    async with sending(tmp_path) as sender:
        curl = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--fail", "-H", "content-type: text/plain"),
            *("--data-binary", f"@{tmp_path / 'records'}", sender.url),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await curl.communicate()
        assert json.loads(printed) == {"accepted": 2}
        assert sender.bodies == ["one", "two"]
