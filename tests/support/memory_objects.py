"""A fake store of checkpoints: a dictionary that fails when it is told to, and its S3."""

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from typing_extensions import override

from penstock.service import UnavailableError
from tests.support.fault_door import Answered, Asked, Backend

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryObjects:
    """As `penstock.router.checkpoint.store.Objects`; counts what was asked of it.

    Attributes:
        held: What it has.
        asked: Each request, as its method and the name.
        before: Called with each request before anything is done; what it raises ends it.
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, name: None

    def create(self, name: str, data: bytes) -> bool:
        self._ask("create", name)
        if name in self.held:
            return False
        self.held[name] = data
        return True

    def put(self, name: str, data: bytes) -> None:
        self._ask("put", name)
        self.held[name] = data

    def get(self, name: str) -> bytes | None:
        self._ask("get", name)
        return self.held.get(name)

    def names(self, below: str) -> list[str]:
        self._ask("names", below)
        return sorted(name for name in self.held if name.startswith(f"{below}/"))

    def remove(self, name: str) -> None:
        self._ask("remove", name)
        self.held.pop(name, None)

    def close(self) -> None:
        pass

    def fail_after(self, count: int) -> None:
        """Of the requests from now on, that many are done; each later one fails."""
        left = iter(range(count))

        def before(method: str, name: str) -> None:
            if next(left, None) is None:
                raise UnavailableError(f"{method} {name}: the store is away", fix="wait")

        self.before = before

    def _ask(self, method: str, name: str) -> None:
        self.asked.append((method, name))
        self.before(method, name)


class S3OfObjects(Backend):
    """Objects below `s3://bucket/jobs`, by as much of S3's protocol as checkpoints need."""

    URL = "s3://bucket/jobs"

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects

    @override
    def handle(self, asked: Asked) -> Answered:
        try:
            return self._answer(asked)
        except UnavailableError as error:
            return _error(503, "ServiceUnavailable", error.reason)

    def _answer(self, asked: Asked) -> Answered:
        parts = urlsplit(asked.path)
        if prefix := parse_qs(parts.query).get("prefix"):
            below = prefix[0].removeprefix("jobs/").rstrip("/")
            keys = "".join(
                f"<Contents><Key>jobs/{escape(name)}</Key></Contents>"
                for name in self._objects.names(below)
            )
            return Answered(200, f"<ListBucketResult>{keys}</ListBucketResult>".encode())
        name = unquote(parts.path).removeprefix("/bucket/jobs/")
        match asked.method:
            case "PUT" if asked.headers.get("if-none-match") == "*":
                if not self._objects.create(name, asked.body):
                    return _error(412, "PreconditionFailed", name)
            case "PUT":
                self._objects.put(name, asked.body)
            case "DELETE":
                self._objects.remove(name)
                return Answered(204)
            case _:
                found = self._objects.get(name)
                return _error(404, "NoSuchKey", name) if found is None else Answered(200, found)
        return Answered(200)


def _error(status: int, code: str, message: str) -> Answered:
    said = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return Answered(status, said.encode())
