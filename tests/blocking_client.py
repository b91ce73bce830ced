"""Generates logd's blocking client from the one for an event loop; `make reference` writes it.

Words that differ are exchanged, what is for an event loop only is left out, and ruff sorts the
imports and lays the lines out.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "logd" / "penstock" / "logd" / "client"
SOURCE, TARGET = CLIENT / "async_client.py", CLIENT / "client.py"

_HEAD: Final = '"""The blocking client; generated: change `penstock.logd.client.async_client`."""\n'
_WORDS: Final = (
    (r"(?s)^.*?\n\"\"\"\n", _HEAD),
    (r"(?ms)^ *# async only\n.*?^ *# end\n", ""),
    (r"(?m)^ +outstanding_max: .*\n", ""),
    (r"OUTSTANDING_MAX, ", ""),
    (r"  # noqa: PLR0913 - independent .*", ""),
    (r"\bimport asyncio\b", "import time"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync(LogClient|CursorHandle|GroupConsumer|Positions)\b", r"\1"),
    (r"\bclient\.group_consumer\b", "client.blocking_group"),
    (r"\bclient\.transport\b", "client.sockets"),
    (r"\bConnectionPool\b", "SocketPool"),
)
_FIXES: Final = ("--select", "I,UP028", "--fix", "--unsafe-fixes", "--quiet")


def blocking(source: str) -> str:
    """The blocking client's module, from the other's."""
    text = source
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    for arguments in (("check", *_FIXES), ("format",)):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text
