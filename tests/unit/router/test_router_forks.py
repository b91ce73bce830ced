"""Processes that a job starts, beside the connections of its sinks."""

import os
import subprocess
import sys

FORKS = 300
SCRIPT = """
import subprocess, sys
from concurrent import futures
import penstock.router.sinks
import grpc
server = grpc.server(futures.ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(20)
for _ in range(int(sys.argv[1])):
    # As pyspark starts the JVM: only with such a function is the child a fork of this process.
    subprocess.run(["true"], check=True, preexec_fn=lambda: None)
"""


def test_a_process_is_started_beside_a_connection_of_grpc() -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    command = [sys.executable, "-c", SCRIPT, str(FORKS)]
    done = subprocess.run(command, check=False, timeout=120, env=environ, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
