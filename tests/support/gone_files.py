"""Files that are gone, as a checkpoint knows them."""

from itertools import count

from penstock.collector.limits import HEAD_BYTES
from penstock.collector.sources.files.identity import FileState, Found, Generations, Mark, head_hash

HEAD = b"first line\n"
BODY = HEAD + b"second l\n"
MODIFIED_NS = 1_700_000_000_123_456_789
NUMBERS = count(1)


def gone(
    position: int = 20, *, content: bytes = BODY, head_length: int = 11, path: str = "/x.log"
) -> FileState:
    generations = Generations(following=next(NUMBERS))
    state = generations.begin("s", Found(1, 2, len(content), content[:head_length]), path)
    state.position = position
    marked = content[max(0, position - HEAD_BYTES) : position]
    digest = head_hash(marked)
    state.mark = Mark(position, MODIFIED_NS, position, len(marked), digest)
    return state
