"""Files in a real HDFS: exclusive, replaced in one step, and errors that say who must act."""

import gc
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.router.storage.hdfs import Hdfs, HdfsSettings
from penstock.service import ConfigError, UnavailableError
from tests.support.hdfs_lake import names_in_time
from tests.support.hdfs_server import HdfsServer, hdfs_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    found = hdfs_server()
    yield found
    found.heal()


@pytest.fixture
def files(server: HdfsServer) -> Hdfs:
    return opened(server)


def opened(server: HdfsServer, base: str = "/lake", **settings: Any) -> Hdfs:
    return Hdfs(server.url + base, location="sinks.x.path", settings=HdfsSettings(**settings))


def everything(server: HdfsServer) -> list[str]:
    return sorted(it.path for it in list(server.client().list_status("/", True)) if not it.isdir)


def test_a_file_is_made_once_and_replaced_as_a_whole(server: HdfsServer, files: Hdfs) -> None:
    assert files.create("a/b/note", b"one")
    assert not files.create("a/b/note", b"two")
    assert (files.read("a/b/note"), files.size("a/b/note")) == (b"one", 3)
    files.replace("a/b/note", b"three")
    files.replace("a/c", b"")
    assert (files.read("a/b/note"), files.read("a/c")) == (b"three", b"")
    mine = [path for path in everything(server) if path.startswith("/lake/")]
    assert mine == ["/lake/a/b/note", "/lake/a/c"], "nothing that was written aside"
    files.remove("a/b/note")
    files.remove("a/b/note")
    assert (files.read("a/b/note"), files.size("a/b/note")) == (None, None)


def test_of_many_who_make_a_file_one_does(server: HdfsServer) -> None:
    made: list[int] = []
    start = threading.Barrier(8)

    def make(number: int) -> None:
        start.wait(60)
        if opened(server).create("lock", b"%d" % number):
            made.append(number)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    (owner,) = made
    assert opened(server).read("lock") == b"%d" % owner
    assert everything(server) == ["/lake/lock"]


def test_names_are_those_of_whole_files(server: HdfsServer, files: Hdfs) -> None:
    for path in ("a/1", "a/2", "a/b/3", "a/.b/4", "a/.5", "_c/6"):
        files.create(path, b"x")
    assert files.names("a") == ["1", "2"]
    assert files.names("a", recursive=True) == ["1", "2", "b/3"]
    assert files.names(recursive=True) == ["_c/6", "a/1", "a/2", "a/b/3"]
    assert (files.names("none"), files.directories()) == ([], ["_c", "a"])
    files.remove_directory("a")
    assert files.names(recursive=True) == ["_c/6"]
    assert opened(server, base="").names("lake/_c") == ["6"]


def test_a_file_is_moved_in_one_step_to_where_another_one_is(files: Hdfs) -> None:
    files.create("new", b"new")
    files.create("a/old", b"old")
    files.rename("new", "a/old")
    files.rename("a/old", "b/c/d")
    assert files.names(recursive=True) == ["b/c/d"]
    assert files.read("b/c/d") == b"new"
    with pytest.raises(UnavailableError, match=r"hdfs://.*/lake/a/old was there and is gone"):
        files.rename("a/old", "b/c/d")
    assert files.read("b/c/d") == b"new"


def test_arrow_writes_and_reads_large_files(files: Hdfs) -> None:
    table = pa.table({"number": pa.array(range(600_000))})
    with files.writer("large.parquet") as file:
        pq.write_table(table, file, compression="none", use_dictionary=False)
        file.sync()
        size = file.tell()
    assert size == files.size("large.parquet")
    assert size > 4 * 1024 * 1024
    assert pq.read_table(files.reader("large.parquet")).equals(table)
    reader = files.reader("large.parquet")
    reader.seek(-4, io.SEEK_END)
    assert reader.read() == b"PAR1"
    reader.seek(10**9)
    assert reader.read(1) == b""


@pytest.mark.parametrize("write", [Hdfs.create, Hdfs.replace])
def test_a_rename_of_which_the_answer_was_lost_was_done(
    files: Hdfs, write: Callable[[Hdfs, str, bytes], bool | None]
) -> None:
    """The library asks again, and the namenode finds no source any more."""
    client = files.connected()
    rename = client.rename

    def twice(*given: Any) -> None:
        rename(*given)
        rename(*given)

    client.rename = twice
    assert write(files, "note", b"mine") in (True, None)
    assert files.read("note") == b"mine"


def test_a_rename_that_another_spoilt_is_no_success(files: Hdfs) -> None:
    client = files.connected()
    rename = client.rename

    def taken_away(source: str, *given: Any) -> None:
        client.delete(source, False)
        rename(source, *given)

    client.rename = taken_away
    for write in (files.create, files.replace):
        with pytest.raises(UnavailableError, match="was there and is gone"):
            write("note", b"mine")


def test_a_nameservice_is_found_by_hadoops_files(server: HdfsServer) -> None:
    """Of its two namenodes the first one is dead."""
    settings = HdfsSettings(config_dir=server.config_dir)
    files = Hdfs("hdfs://lake/base", location="sinks.x.path", settings=settings)
    assert files.create("a", b"1")
    assert opened(server, "/base").read("a") == b"1"


@pytest.mark.parametrize(
    ("url", "settings", "said", "fix"),
    [
        ("hdfs://nowhere/x", {}, "No NameNode hosts found", "write the port"),
        ("s3://b/x", {}, "does not say which namenode", "hdfs://namenode:8020"),
        ("hdfs://n:1/x", {"config_dir": "/nowhere"}, "/nowhere .*does not exist", "name the one"),
        ("hdfs://n:1/x", {"config_dir": "/proc"}, "/proc has neither core-site", "config_dir"),
    ],
)
def test_what_cannot_be_used_is_refused(
    url: str, settings: dict[str, Any], said: str, fix: str
) -> None:
    with pytest.raises(ConfigError, match=rf"sinks\.x\.path: .*{said}") as told:
        Hdfs(url, location="sinks.x.path", settings=HdfsSettings(**settings)).names()
    assert fix in told.value.fix


def test_a_file_of_hadoops_that_is_no_xml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"sinks\.x\.path: ") as told:
        Hdfs(
            "hdfs://n:1/", location="sinks.x.path", settings=HdfsSettings(config_dir=tmp_path)
        ).names()
    assert "core-site.xml" in told.value.fix


def test_who_may_not_write_is_told_so(
    server: HdfsServer, files: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-at-all")
    with pytest.raises(ConfigError, match=r"Permission denied: user=nobody-at-all.*") as told:
        opened(server).create("b", b"1")
    assert "HADOOP_USER_NAME" in told.value.fix
    assert "at org.apache" not in told.value.reason


def test_a_quota_that_is_reached_is_told_of(server: HdfsServer, files: Hdfs) -> None:
    files.make_directory()
    server.admin("-setQuota", "3", "/lake")  # the directory is one of them
    assert files.create("1", b"1")
    assert files.create("2", b"1")
    with pytest.raises(ConfigError, match="quota") as told:
        files.create("3", b"1")
    assert "raise the quota" in told.value.fix


def test_a_space_quota_that_is_reached_is_told_of(server: HdfsServer, files: Hdfs) -> None:
    files.make_directory()
    server.admin("-setSpaceQuota", "1m", "/lake")
    with pytest.raises(ConfigError, match="quota"):
        files.create("1", b"1")


def test_a_directory_in_the_way_is_told_of(files: Hdfs) -> None:
    files.create("a/b", b"1")
    with pytest.raises(ConfigError):
        files.create("a:b", b"1")
    with pytest.raises(ConfigError):
        files.make_directory("a/b")


def test_a_namenode_in_safe_mode_is_waited_for(server: HdfsServer, files: Hdfs) -> None:
    files.create("a", b"1")
    server.safe_mode(on=True)
    for change in (lambda: files.create("b", b"1"), lambda: files.rename("a", "c")):
        with pytest.raises(UnavailableError, match="safe mode") as told:
            change()
        assert "safemode get" in told.value.fix
    server.safe_mode(on=False)
    assert files.create("b", b"1")


def test_a_namenode_that_is_away_is_waited_for(server: HdfsServer, files: Hdfs) -> None:
    files.create("a", b"1")
    server.kill("namenode")
    for call in (lambda: files.read("a"), lambda: files.create("b", b"1"), files.names):
        with pytest.raises(UnavailableError, match=r"sinks\.x\.path: hdfs://127"):
            call()
    server.start("namenode")
    server.wait_for_datanode()
    assert files.create("b", b"1")
    assert files.names() == ["a", "b"]


def test_a_namenode_that_is_silent_is_not_waited_for_without_end(
    server: HdfsServer, files: Hdfs
) -> None:
    files.create("a", b"1")
    hasty = opened(server, timeout_s=1.5)
    wait_until(lambda: names_in_time(hasty) == ["a"], what="it is connected")
    server.pause("namenode")
    for call in (lambda: hasty.read("a"), lambda: hasty.create("b", b"1"), hasty.names):
        with pytest.raises(UnavailableError, match=r"has not answered for 1\.5 s"):
            call()
    server.resume("namenode")
    assert files.read("a") == b"1"
    wait_until(lambda: names_in_time(hasty) == ["a"], what="it answers again")


def test_a_file_that_is_made_too_late_is_not_closed_by_the_garbage_collector(
    server: HdfsServer,
) -> None:
    """It would wait for a silent namenode without end, in whichever thread it happens to run."""
    files = opened(server, timeout_s=1.5)
    server.pause("namenode")
    with pytest.raises(UnavailableError) as told:
        files.writer("late")
    server.resume("namenode")
    wait_until(lambda: "/lake/late" in everything(server), what="the call that was given up ends")
    wait_until(lambda: not [it for it in threading.enumerate() if it.name == "hdfs-call"])
    server.pause("namenode")

    def collect() -> None:
        nonlocal told
        del told  # with the frames of the call
        gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    is_stuck = thread.is_alive()
    server.resume("namenode")
    assert not is_stuck


def test_datanodes_that_are_away_are_waited_for(server: HdfsServer) -> None:
    """The namenode takes them for alive, and the library tries those again that it names."""
    files = opened(server, timeout_s=5)
    files.create("a", b"1")
    server.kill("datanode")
    with pytest.raises(UnavailableError):
        files.create("b", b"1")
    server.start("datanode")
    server.wait_for_datanode()
    assert files.names() == ["a"]
    assert files.create("b", b"1")
    assert files.read("b") == b"1"


def test_a_datanode_that_is_silent_is_not_waited_for_without_end(
    server: HdfsServer, files: Hdfs
) -> None:
    hasty = opened(server, timeout_s=1.5)
    server.pause("datanode")
    with pytest.raises(UnavailableError, match="has not answered"):
        hasty.create("a", b"1")
    server.resume("datanode")
    assert files.create("a", b"2")
    assert files.read("a") == b"2"
