"""What HDFS says when it does not do something, for whoever must act.

The library's errors are texts, mostly in the form that Rust prints. Where the namenode refused,
that is `RPCError`, with the class of Java's exception, its words and its stack.
"""

import re
from typing import Final

from penstock.service import ConfigError, ServiceError, UnavailableError

_REFUSED: Final = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[^"]+)", "(?P<said>.*)"\)', re.DOTALL)
_OTHER: Final = re.compile(r"(?P<kind>[A-Z][A-Za-z]+)\((?P<said>.*)\)", re.DOTALL)

_PERMISSION: Final = (
    "let the job's user write there, or run the job as one who may: HADOOP_USER_NAME, or Kerberos'"
    " principal"
)
_SPACE: Final = "raise the quota of the directory, or remove what is not needed"
_KERBEROS: Final = (
    "check principal and keytab, or the user's ticket (klist); the library needs libgssapi_krb5,"
    " and config_dir a core-site.xml with hadoop.security.authentication"
)
_SITES: Final = "correct the URL, or the core-site.xml and hdfs-site.xml that are used"
_DIRECTORY: Final = "name another directory"

_TO_CHANGE: Final = {
    "AccessControlException": _PERMISSION,
    "AuthorizationException": _PERMISSION,
    "NSQuotaExceededException": _SPACE,
    "DSQuotaExceededException": _SPACE,
    "QuotaByStorageTypeExceededException": _SPACE,
    "SASLError": _KERBEROS,
    "GSSAPIError": _KERBEROS,
    "NoSASLMechanism": _KERBEROS,
    "InvalidToken": _KERBEROS,
    "XmlParseError": _SITES,
    "UrlParseError": _SITES,
    "InvalidArgument": _SITES,
    "InvalidPathException": _DIRECTORY,
    "ParentNotDirectoryException": _DIRECTORY,
    "PathComponentTooLongException": _DIRECTORY,
    "MaxDirectoryItemsExceededException": _DIRECTORY,
    "FileExistsError": _DIRECTORY,
    "IsADirectoryError": _DIRECTORY,
    "NotImplementedError": _DIRECTORY,
    "UnsupportedErasureCodingPolicy": _DIRECTORY,
}
"""What somebody must change, by the kind of the error; every other one may pass."""

_NO_NAMENODE: Final = "No NameNode hosts found"
_WAYS: Final = (
    (r"SafeMode|safe mode", "see why the namenode is in safe mode: hdfs dfsadmin -safemode get"),
    (r"replicated to|DataTransfer|BlocksNotFound|datanode", "see whether the datanodes run"),
    (r"lookup address", "check the name of the namenode, and this machine's DNS"),
    (
        r"listener disconnected|reset by peer",
        "see whether the namenode runs, and whether the port is its RPC's, which mostly is 8020",
    ),
    (r"", "see whether the namenode and the datanodes run"),
)
"""What to look at, by the words of an error that may pass; the first that fits is it."""


def translated(error: Exception, about: str) -> ServiceError:
    """An error of the library, as the router raises it.

    Args:
        error: The library's.
        about: The key of the job file, and what it was about.
    """
    kind, said = _parsed(error)
    reason = f"{about}: {said}"
    if said == _NO_NAMENODE:
        return ConfigError(
            reason,
            fix="write the port (hdfs://namenode:8020/…), or name the directory that has the"
            " nameservice's hdfs-site.xml as config_dir",
        )
    if kind in _TO_CHANGE:
        return ConfigError(reason, fix=_TO_CHANGE[kind])
    fix = next(fix for pattern, fix in _WAYS if re.search(pattern, f"{kind} {said}"))
    return UnavailableError(reason, fix=f"{fix}; it is tried again")


def _parsed(error: Exception) -> tuple[str, str]:
    """Its kind, and the first line of what it says, without Java's stack."""
    text = str(error)
    found = _REFUSED.fullmatch(text) or _OTHER.fullmatch(text)
    if found is None:
        return text if text == "NoSASLMechanism" else type(error).__name__, _first_line(text)
    said = found["said"].replace(r"\n", "\n").replace(r"\"", '"').removeprefix('"')
    return re.split(r"[.$]", found["kind"])[-1], _first_line(said).removesuffix('"')


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
