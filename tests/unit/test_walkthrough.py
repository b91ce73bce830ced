"""How documents are read that tests carry out, and what output may be shown for what is printed."""

import os
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.support.walkthrough import Command, File, Reader, matches, read_document

DOCUMENT = """\
Some words, `code`, and:

```yaml conf/shop.yaml
a: 1

b: 2
```

```console
$ cat conf/shop.yaml
a: 1
…
$ for one in 1 2; do
>   echo "$one"
> done
$ false
[exit 1]
```

```yaml
only: shown
```
"""


def test_a_document_has_files_and_commands_in_order() -> None:
    assert read_document(DOCUMENT) == [
        File("conf/shop.yaml", "a: 1\n\nb: 2\n"),
        Command(10, "cat conf/shop.yaml", ["a: 1", "…"]),
        Command(13, 'for one in 1 2; do\n  echo "$one"\ndone'),
        Command(16, "false", [], 1),
    ]


@pytest.mark.parametrize(
    "text", ["```console\nno command\n```\n", "```console\n$ it does not end\n"]
)
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"output before a command|does not end"):
        read_document(text)


@pytest.mark.parametrize(
    ("shown", "printed", "may"),
    [
        (["a … c"], ["a b c"], True),
        (["a … c"], ["a b d"], False),
        (["a.c"], ["abc"], False),
        (["…", "z"], ["x", "y", "z"], True),
        (["…", "z"], ["z"], True),
        (["z"], ["x", "z"], False),
        (["x"], ["x", "z"], False),
        (["a …"], ["a b", "c"], False),
    ],
)
def test_what_may_be_shown(shown: list[str], printed: list[str], may: bool) -> None:
    assert matches(shown, printed) is may


def test_a_reader_sees_when_it_goes_otherwise_than_the_document_says(tmp_path: Path) -> None:
    with Reader(tmp_path, dict(os.environ)) as reader:
        for step in read_document(DOCUMENT):
            reader.follow(step, 60)
        reader.follow(Command(1, "cd conf && here=$PWD"), 60)
        reader.follow(Command(1, 'echo "$here"', [str(tmp_path / "conf")]), 60)
        reader.follow(Command(1, "printf no-end", ["no-end"]), 60)
        for wrong in (Command(7, "true", [], 1), Command(7, "echo b", ["a"])):
            with pytest.raises(AssertionError, match="of line 7:"):
                reader.follow(wrong, 60)
        reader.follow(Command(1, "sleep 600 &"), 60)


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    took_too_long = pytest.raises(AssertionError, match=r"not within 0.5 s: sleep 600")
    with Reader(tmp_path, dict(os.environ)) as reader, took_too_long:
        reader.follow(Command(1, "sleep 600"), 0.5)


def test_what_a_document_left_in_sessions_of_its_own_is_ended_too(tmp_path: Path) -> None:
    daemon = "setsid sh -c 'echo $$ > pid; exec sleep 1000' >log 2>&1 &"
    with Reader(tmp_path, dict(os.environ)) as reader:
        reader.follow(Command(1, f"{daemon} until [ -s pid ]; do sleep 0.01; done"), 60.0)
        with pytest.raises(AssertionError, match="not within"):
            reader.follow(Command(2, "sleep 1000"), 0.1)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}/root").exists(), within_s=10, what="it is gone")
