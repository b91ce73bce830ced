"""Lines as well-known programs write them, made from templates: no two need be alike.

Eleven formats. They hold what a search for sensitive values may take for something: at-signs that
begin no address (`Leader@345]`, `user@host:/path`, an object's hash), block ids and other long
digits, UUIDs, hex ids, times without separators, URLs, stack traces. One line in some hundred holds
an address indeed. The same seed makes the same lines.
"""

import random
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Final

_BEGIN_S: Final = 1_772_000_000
_SEED: Final = 11
_CLOCK: Final = "%d/%b/%Y:%H:%M:%S +0000"
Fill = Callable[[random.Random], object]

_HOSTS: Final = ("till-1", "till-2", "db-01.shop.internal", "node17", "an304", "LAB-SRV", "edge-7")
_USERS: Final = ("root", "admin", "deploy", "yarn", "hdfs", "postgres", "oracle", "guest")
_CLASSES: Final = (
    "dfs.DataNode$PacketResponder", "dfs.FSNamesystem", "server.quorum.FastLeaderElection",
    "executor.Executor", "storage.ShuffleBlockFetcherIterator", "v2.app.job.impl.TaskAttemptImpl",
    "scheduler.TaskSetManager", "server.NIOServerCnxn", "ipc.Client$Connection",
)  # fmt: skip
_PATHS: Final = (
    "/cart/checkout", "/api/v2/orders", "/static/app.4f2a9c1b.js", "/img/logo@2x.png",
    "/search?q=blue+shoes&page=3", "/login?next=%2Faccount%2Forders", "/npm/lodash@4.17.21/lodash",
)  # fmt: skip


def _number(low: int, high: int) -> Fill:
    return lambda dice: dice.randint(low, high)


def _hex(digits: int) -> Fill:
    return lambda dice: f"{dice.getrandbits(4 * digits):0{digits}x}"


def _one_of(*values: str) -> Fill:
    return lambda dice: dice.choice(values)


def _address(dice: random.Random) -> str:
    return f"10.{dice.randrange(256)}.{dice.randrange(256)}.{dice.randrange(1, 255)}"


def _uuid(dice: random.Random) -> str:
    digits = f"{dice.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_FILLS: Final[dict[str, Fill]] = {
    "address": _address,
    "block": lambda dice: dice.randrange(-(1 << 63), 1 << 63),
    "class": _one_of(*_CLASSES),
    "epoch_ms": _number(1_772_000_000_000, 1_773_000_000_000),
    "hex8": _hex(8),
    "hex32": _hex(32),
    "host": _one_of(*_HOSTS),
    "method": _one_of("GET", "GET", "GET", "POST", "PUT", "DELETE"),
    "ms": _number(0, 999),
    "path": _one_of(*_PATHS),
    "pid": _number(100, 65_535),
    "port": _number(1024, 65_535),
    "size": _number(64, 67_108_864),
    "small": _number(0, 40),
    "status": _one_of("200", "200", "200", "304", "404", "500"),
    "user": _one_of(*_USERS),
    "uuid": _uuid,
}

FORMATS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Apache": (
        "[%a %b %d %H:%M:%S %Y] ",
        (
            (
                "[core:error] [pid {pid}] [client {address}:{port}] AH00037: link not followed: "
                "{path}"
            ),
            "[notice] caught SIGTERM, shutting down child {pid} in slot {small}",
            "[proxy:warn] [pid {pid}] AH01144: no handler for {path}, request {uuid}",
            "[error] [client {address}] Directory index forbidden by rule: /var/www{path}",
        ),
    ),
    "nginx": (
        "",
        (
            (
                '{address} - - [{clock}] "{method} {path} HTTP/1.1" {status} {size} "-" '
                '"curl/8.5" {uuid}'
            ),
            (
                '{address} - {user} [{clock}] "{method} {path} HTTP/2.0" {status} {size} '
                '"https://shop.example/cart" "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0" '
                "rt=0.{ms}"
            ),
        ),
    ),
    "HDFS": (
        "%y%m%d %H%M%S ",
        (
            "{pid} INFO {class}: PacketResponder {small} for block blk_{block} terminating",
            (
                "{pid} INFO {class}: Receiving block blk_{block} src: /{address}:{port} dest: "
                "/{address}:50010"
            ),
            (
                "{pid} INFO {class}: BLOCK* NameSystem.addStoredBlock: {address}:50010 is added "
                "to blk_{block} size {size}"
            ),
            (
                "{pid} WARN {class}: {address}:50010:Got exception while serving blk_{block} to "
                "/{address}"
            ),
        ),
    ),
    "Hadoop": (
        "%Y-%m-%d %H:%M:%S,",
        (
            (
                "{ms} INFO [AsyncDispatcher event handler] org.apache.hadoop.mapreduce.{class}: "
                "attempt_{epoch_ms}_0020_m_000{small}_0 TaskAttempt Transitioned from NEW to "
                "UNASSIGNED"
            ),
            (
                "{ms} WARN [LeaseRenewer:{user}@{host}:9000] org.apache.hadoop.{class}: Address "
                "change detected. Old: {host}/{address}:9000 New: {host}:9000"
            ),
            (
                "{ms} INFO [IPC Server handler {small} on {port}] org.apache.hadoop.{class}: "
                "Progress of TaskAttempt attempt_{epoch_ms}_0020_m_000{small}_0 is : 0.{ms}"
            ),
            ("{ms} INFO [main] org.mortbay.log: Started HttpServer2$SelectChannel@0.0.0.0:{port}"),
            "{ms} INFO [Thread-{small}] akka.tcp://sparkDriver@{address}:{port} disassociated",
        ),
    ),
    "ZooKeeper": (
        "%Y-%m-%d %H:%M:%S,",
        (
            (
                "{ms} - INFO  "
                "[QuorumPeer[myid={small}]/0:0:0:0:0:0:0:0:2181:FastLeaderElection@{ms}] - "
                "Notification time out: {port}"
            ),
            (
                "{ms} - WARN  [RecvWorker:{epoch_ms}:QuorumCnxManager$RecvWorker@{ms}] - "
                "Connection broken for id {epoch_ms}, my id = {small}, error ="
            ),
            (
                "{ms} - INFO  [NIOServerCxn.Factory:0.0.0.0/0.0.0.0:2181:NIOServerCnxn@{ms}] - "
                "Closed socket connection for client /{address}:{port} which had sessionid "
                "0x{hex8}{hex8}"
            ),
        ),
    ),
    "Spark": (
        "%y/%m/%d %H:%M:%S ",
        (
            "INFO {class}: Running task {small}.0 in stage {small}.0 (TID {pid})",
            (
                "INFO {class}: Finished task {small}.0 in stage {small}.0 (TID {pid}). {size} "
                "bytes result"
            ),
            (
                "INFO {class}: Input split: "
                "hdfs://{address}:9000/pjhe/logs/part-000{small}:{size}+{size}"
            ),
            (
                "ERROR {class}: RpcEndpointRef(spark://CoarseGrainedScheduler@{address}:{port}) "
                "is lost"
            ),
        ),
    ),
    "OpenSSH": (
        "%b %d %H:%M:%S ",
        (
            (
                "{host} sshd[{pid}]: Failed password for invalid user {user} from {address} port "
                "{port} ssh2"
            ),
            (
                "{host} sshd[{pid}]: Accepted publickey for {user} from {address} port {port} "
                "ssh2: RSA SHA256:{hex32}"
            ),
            ("{host} sshd[{pid}]: debug1: kex: algorithm: curve25519-sha256@libssh.org [preauth]"),
            (
                "{host} sshd[{pid}]: pam_unix(sshd:auth): authentication failure; logname= uid=0 "
                "euid=0 tty=ssh ruser= rhost={address}  user={user}"
            ),
        ),
    ),
    "cluster syslog": (
        "- {pid} %Y.%m.%d ",
        (
            (
                "{host} %b %d %H:%M:%S {host}/{host} crond(pam_unix)[{pid}]: session closed for "
                "{user}"
            ),
            (
                "local@{host} %b %d %H:%M:%S postfix/postdrop[{pid}]: warning: unable to look up "
                "public/pickup: No such file or directory"
            ),
            (
                "{host} %b %d %H:%M:%S src@{host} dhcpd: DHCPDISCOVER from "
                "00:11:43:{small}:5a:0f via eth1: network A_net: no free leases"
            ),
            (
                "{host} %b %d %H:%M:%S {host}/{host} ntpd[{pid}]: synchronized to {address}, "
                "stratum 3"
            ),
        ),
    ),
    "OpenStack": (
        "nova-api.log.1.%Y-%m-%d_%H:%M:%S %Y-%m-%d %H:%M:%S.{ms} ",
        (
            (
                "{pid} INFO nova.osapi_compute.wsgi.server [req-{uuid} {hex32} {hex32} - - -] "
                '{address} "{method} /v2/{hex32}/servers/detail HTTP/1.1" status: {status} len: '
                "{pid} time: 0.{ms}"
            ),
            (
                "{pid} INFO nova.compute.manager [req-{uuid} {hex32} {hex32} - - -] [instance: "
                "{uuid}] VM Started (Lifecycle Event)"
            ),
            (
                "{pid} WARNING nova.virt.libvirt.imagecache [req-{uuid} - - - - -] Unknown base "
                "file: /var/lib/nova/instances/_base/{hex32}{hex8}"
            ),
        ),
    ),
    "Java traces": (
        "",
        (
            "\tat com.shop.cart.{class}.settle(Cart.java:{ms})",
            ("\tat java.base/java.util.concurrent.ThreadPoolExecutor.runWorker(Thread.java:{pid})"),
            (
                "java.lang.IllegalStateException: com.shop.cart.Cart@{hex8} belongs to session "
                "{uuid}"
            ),
            (
                "Caused by: java.net.ConnectException: no answer of {user}@{host}:{port} within "
                "{ms} ms"
            ),
            "\t... {small} common frames omitted",
            '  File "/srv/shop/orders/views.py", line {ms}, in settle',
        ),
    ),
    "Kubernetes": (
        "",
        (
            (
                'I0726 {clock} {pid} kubelet.go:{pid}] "SyncLoop UPDATE" pod="shop/till-{hex8}" '
                'uid="{uuid}" image="registry.example/till@sha256:{hex32}{hex32}"'
            ),
            (
                "E0726 {clock} {pid} reflector.go:{ms}] failed to list *v1.Pod: Get "
                '"https://{address}:6443/api/v1/pods?resourceVersion={epoch_ms}": dial tcp: '
                "timeout"
            ),
            (
                'W0726 {clock} {pid} trace.go:{ms}] Trace[{pid}]: "Update" url:{path} (total: '
                "{ms}ms)"
            ),
        ),
    ),
}
"""By name: how a line begins, by `time.strftime`, and how it goes on."""
_ADDRESSED: Final = " user=ann.lee{small}@mail.example.com"
_ADDRESSED_EVERY: Final = 200


def lines_of(name: str, count: int) -> Iterator[bytes]:
    """Lines of one format, each with its line break."""
    dice = random.Random(f"{_SEED} {name}")
    begin, rest = FORMATS[name]
    for number in range(count):
        template = begin + dice.choice(rest)
        if number % _ADDRESSED_EVERY == _ADDRESSED_EVERY - 1:
            template += _ADDRESSED
        yield _filled(template, _BEGIN_S + number // 50, dice).encode() + b"\n"


def lines_of_all(count: int) -> Iterator[bytes]:
    """Lines of all formats, in runs of a hundred of one, as where files are read in turns."""
    sources = [lines_of(name, count) for name in FORMATS]
    for number in range(count):
        yield next(sources[number // 100 % len(sources)])


@lru_cache(maxsize=1024)
def _parts(template: str, at_s: int) -> tuple[str, ...]:
    """Text and names of fills in turns, beginning with text."""
    timed = time.strftime(template.replace("{clock}", _CLOCK), time.gmtime(at_s))
    return tuple(timed.replace("}", "{").split("{"))


def _filled(template: str, at_s: int, dice: random.Random) -> str:
    parts = _parts(template, at_s)
    fills = (str(_FILLS[name](dice)) for name in parts[1::2])
    return "".join(chain.from_iterable(zip_longest(parts[::2], fills, fillvalue="")))
