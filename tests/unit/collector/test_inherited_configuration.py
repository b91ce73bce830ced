"""A configuration that a process inherits: what files said, whatever they say now."""

import os
from pathlib import Path

import pytest

from penstock.collector.config import (
    load_collector_config,
    read_inherited,
    read_texts,
    write_inherited,
)

GOOD = "data_dir: /x\nname: zürich\nsources: [{type: stdin}]\n"


def test_what_the_files_said_counts_and_not_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    texts = read_texts([path])
    path.write_text("sources: nothing of the kind")
    for _ in range(2):  # each process has one of its own
        inherited = read_inherited(write_inherited(texts))
        assert inherited == texts
        assert load_collector_config([path], texts=inherited).name == "zürich"


def test_nothing_is_inherited_by_a_descriptor_that_is_closed(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="descriptor"):
        read_inherited(descriptor)
