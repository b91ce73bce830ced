"""Master keys for tests: files with keys that are made of their names."""

import hashlib
from pathlib import Path

from penstock.logd.encryption.master_keys import KeySource, MasterKeys


def key_file(directory: Path, name: str, *, content: str | None = None) -> Path:
    """A file with a master key, or with what is to stand for one."""
    path = directory / f"{name}.key"
    path.write_text(content or hashlib.sha256(name.encode()).hexdigest() + "\n")
    return path


def master_keys(directory: Path, *names: str) -> MasterKeys:
    """Master keys in files; the first is the active one."""
    names = names or ("now",)
    sources = {name: KeySource(file=key_file(directory, name)) for name in names}
    return MasterKeys(sources, names[0])


def section(directory: Path, *names: str) -> dict[str, object]:
    """The section `encryption` of a configuration; the first key is the active one."""
    keys = {name: {"file": str(key_file(directory, name))} for name in names}
    return {"active": names[0], "keys": keys}
