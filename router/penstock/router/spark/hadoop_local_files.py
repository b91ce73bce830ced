"""Hadoop's local file system without a program for each permission that it sets.

Spark writes two files a batch through it, and each has a checksum in a file beside it. Without its
native library, which no wheel brings, Hadoop starts `chmod` for each of the four. The class below
has Java set them; it is compiled when Spark has started, by the compiler that Spark compiles its
queries with, and is all else that Hadoop's own is, checksums included.
"""

from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_NAME: Final = "penstock.LocalFiles"
_SOURCE: Final = """\
package penstock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission wanted) throws IOException {
            if (wanted.getStickyBit()) {
                super.setPermission(path, wanted);
                return;
            }
            String letters = wanted.getUserAction().SYMBOL
                + wanted.getGroupAction().SYMBOL
                + wanted.getOtherAction().SYMBOL;
            try {
                Files.setPosixFilePermissions(
                    pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
            } catch (UnsupportedOperationException error) {
                super.setPermission(path, wanted);
            }
        }
    }
}
"""
_log = structlog.get_logger()


def start_no_programs(spark: SparkSession) -> None:
    """Put the class in place of Hadoop's, for this JVM; where that fails, that one stays.

    Nothing of it is in a configuration: Spark hands those to other processes, which lack the class.
    """
    jvm, context = spark._jvm, spark.sparkContext._jsc  # noqa: SLF001 - no public way
    try:
        settings = jvm.org.apache.hadoop.conf.Configuration(context.hadoopConfiguration())
        if settings.get("fs.file.impl") is not None:
            return  # somebody's choice
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        place = jvm.java.net.URI("file:///")
        jvm.org.apache.hadoop.fs.FileSystem.get(place, settings).close()  # then it is made again
        settings.setClassLoader(compiler.getClassLoader())
        settings.set("fs.file.impl", _NAME)
        jvm.org.apache.hadoop.fs.FileSystem.get(place, settings)
    except (Py4JError, TypeError) as error:  # TypeError: a class is not there
        reason = str(error).splitlines()[0]
        _log.warning("hadoop_local_files_unavailable", reason=reason)
