"""Identity of a node, and the handshake by which two nodes agree that they belong together."""

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.net.peer_wire import PROTOCOL_VERSION, Kind, decode
from penstock.logd.wire.logd_peer_pb2 import Hello, Purpose, Refused, Welcome


class Identity(Struct, frozen=True):
    """A node of a cluster, both by name."""

    cluster: str
    node: str


def greet(me: Identity, peer: str, purpose: Purpose) -> bytes:
    """The Hello to a peer."""
    hello = Hello(
        version=PROTOCOL_VERSION, cluster=me.cluster, node=me.node, to=peer, purpose=purpose
    )
    return hello.SerializeToString()


def check_hello(me: Identity, kind: Kind, body: bytes) -> Hello:
    """Decide whether the dialling node is authenticated.

    Raises:
        CorruptError: It says something else than Hello.
        RefusedError: `UNKNOWN_VERSION`, `WRONG_CLUSTER`, `WRONG_NODE`, `BAD_HELLO`.
    """
    if kind is not Kind.HELLO:
        raise CorruptError(f"a peer begins with {kind.name}, not with HELLO")
    hello = decode(Hello, body)
    if hello.version < 1:
        raise RefusedError("UNKNOWN_VERSION", f"there is no version {hello.version}")
    if hello.cluster != me.cluster:
        message = f"{me.node} is of cluster {me.cluster!r}, not {hello.cluster!r}"
        raise RefusedError("WRONG_CLUSTER", message)
    if hello.to != me.node:
        message = f"this is node {me.node!r}, not {hello.to!r}: its address belongs to another"
        raise RefusedError("WRONG_NODE", message)
    if not hello.node or hello.node == me.node:
        raise RefusedError("BAD_HELLO", f"a node cannot be {hello.node!r} here")
    return hello


def welcome(hello: Hello) -> bytes:
    """The answer to one who may talk."""
    return Welcome(version=min(hello.version, PROTOCOL_VERSION)).SerializeToString()


def check_answer(kind: Kind, body: bytes) -> None:
    """Take the answer to our Hello.

    Raises:
        CorruptError: It is none.
        RefusedError: The peer does not want us.
    """
    match kind:
        case Kind.WELCOME:
            version = decode(Welcome, body).version
            if not 1 <= version <= PROTOCOL_VERSION:
                raise CorruptError(f"a peer wants to speak version {version}")
        case Kind.REFUSED:
            raise refusal(decode(Refused, body))
        case _:
            raise CorruptError(f"a peer answers HELLO with {kind.name}")


def refusal(refused: Refused) -> RefusedError:
    """A refusal as it came over the wire."""
    return RefusedError(refused.code, refused.message, **dict(refused.detail))


def encode_refusal(error: RefusedError) -> Refused:
    """A refusal as it goes over the wire."""
    detail = {name: str(value) for name, value in error.detail.items()}
    return Refused(code=error.code, message=str(error), detail=detail)
