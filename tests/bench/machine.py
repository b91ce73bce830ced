"""What the figures were measured on, and what the machine itself can do."""

import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

from tests.bench.figures import percentile
from tests.support.nats_server import nats_server_binary

_MIB: Final = 1024 * 1024
_BLOCK: Final = 1024 * 1024
_SYNCS: Final = 100


def facts(directory: Path, *, mib: int) -> dict[str, Any]:
    """Hardware, versions and physical limits, by name.

    Args:
        directory: Where the systems will keep their data.
        mib: MiB to write, copy and send when measuring limits.
    """
    syncs_ms = [value / 1e6 for value in sync_times_ns(directory, 4096, _SYNCS)]
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "nats-server": _output(nats_server_binary(), "--version"),
        "penstock": _output("git", "describe", "--always", "--dirty"),
        "disk": _disk(directory),
        "fdatasync 4 KiB p50 ms": round(percentile(syncs_ms, 50), 3),
        "fdatasync 4 KiB p99 ms": round(percentile(syncs_ms, 99), 3),
        "write and fdatasync MiB/s": round(_write_rate(directory, mib)),
        "loopback MiB/s": round(_loopback_rate(mib)),
        "memcpy MiB/s": round(_copy_rate(mib)),
        "load average": load(),
    }


def load() -> list[float]:
    """Processes that ran or wanted to, over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def sync_times_ns(directory: Path, size_bytes: int, count: int) -> list[int]:
    """How long appending some bytes with fdatasync takes, one after the other."""
    data, times = bytes(size_bytes), []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(count):
            begun = perf_counter_ns()
            file.write(data)
            os.fdatasync(file.fileno())
            times.append(perf_counter_ns() - begun)
    return times


def _write_rate(directory: Path, mib: int) -> float:
    """MiB/s of sequential writes of 1 MiB with one fdatasync at the end of every eight."""
    data = os.urandom(_BLOCK)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        begun = perf_counter_ns()
        for number in range(mib):
            file.write(data)
            if number % 8 == 7:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
        return mib / (perf_counter_ns() - begun) * 1e9


def _loopback_rate(mib: int) -> float:
    """MiB/s through a TCP connection between two threads (neither holds the GIL in a call)."""
    data, buffer = bytes(_BLOCK), bytearray(_BLOCK)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

    def send() -> None:
        with sender:
            for _ in range(mib):
                sender.sendall(data)

    thread = threading.Thread(target=send)
    begun = perf_counter_ns()
    thread.start()
    with receiver:
        while receiver.recv_into(buffer):
            pass
    thread.join()
    return mib / (perf_counter_ns() - begun) * 1e9


def _copy_rate(mib: int) -> float:
    source, target = bytearray(64 * _MIB), bytearray(64 * _MIB)
    begun = perf_counter_ns()
    rounds = max(1, mib // 64)
    for _ in range(rounds):
        target[:] = source
    return rounds * 64 / (perf_counter_ns() - begun) * 1e9


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(directory: Path) -> str:
    """File system, device, and whether the kernel believes that it rotates."""
    best = ("", "unknown", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        if str(directory.resolve()).startswith(mount) and len(mount) > len(best[0]):
            best = (mount, kind, device)
    name = Path(best[2]).name.rstrip("0123456789")
    rotational = Path(f"/sys/block/{name}/queue/rotational")
    if not rotational.exists():
        return f"{best[1]} on {best[2]}"
    turning = "rotational" if rotational.read_text().strip() == "1" else "not rotational"
    return f"{best[1]} on {best[2]} ({turning})"


def _output(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def open_files(pid: int) -> int:
    """Descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names, not paths


def threads(pid: int) -> int:
    """Threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names, not paths


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    for name, value in facts(Path.cwd(), mib=256).items():
        sys.stdout.write(f"{name}: {value}\n")
