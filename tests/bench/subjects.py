"""h. Subject matching: 1,000 subscriptions of five tokens, a quarter of the tokens wildcards.

Cold: every subject is new. Warm: 1,000 subjects over and over, which the trie's cache holds. The
naive scan compares each subject with every subscription. Published for Go on one core, with as many
subscriptions: naive map 4,053, trie 248,762, concurrent trie 340,910, inverted bitmap 1,052,315
lookups/s; the aim is the concurrent trie. Seconds are of CPU time: nothing here waits.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from time import process_time_ns

from penstock.logd.format.subjects import SubjectTrie, matches
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench

TITLE = "1,000 subscriptions of 5 tokens with wildcards"
COLD = "trie, cold"
WARM = "trie, warm"
NAIVE = "naive scan"
SUBSCRIPTIONS = 1000
TOKENS = 5
WORDS = 10
"""Words that a token may be."""

PUBLISHED = 340_910
WARM_SUBJECTS = 1000


def make_filters(rng: random.Random, count: int) -> list[str]:
    """Filters of five tokens: of four, one is `*`, and one last token of eight is `>`."""
    found = []
    for _ in range(count):
        tokens = ["*" if rng.random() < 0.25 else f"word{rng.randrange(WORDS)}" for _ in range(5)]
        if rng.random() < 0.125:
            tokens[-1] = ">"
        found.append(".".join(tokens))
    return found


def make_subjects(rng: random.Random, count: int) -> list[str]:
    """Different subjects of five tokens, in random order."""
    numbers = rng.sample(range(WORDS**TOKENS), count)
    return [".".join(f"word{digit}" for digit in f"{number:05}") for number in numbers]


def run(bench: Bench) -> Iterator[Case]:
    """Look up in turns, in this process."""
    rng = random.Random(1)
    filters = make_filters(rng, SUBSCRIPTIONS)
    subjects = make_subjects(rng, bench.pick(100_000, 50_000, 2_000))
    trie: SubjectTrie[int] = SubjectTrie()
    for number, wanted in enumerate(filters):
        trie.insert(wanted, number)
    scanned = subjects[: bench.pick(1_000, 200, 20)]
    for subject in scanned:  # before any figure: both find the same
        assert sorted(trie.match(subject)) == sorted(_scan(filters, subject)), subject
    case = Case(
        "h", "lookups", "lookups/s",
        compare={COLD: (NAIVE,), WARM: (NAIVE,)},
        aims=(Aim(COLD, None, PUBLISHED), Aim(WARM, None, PUBLISHED)),
    )  # fmt: skip
    warm = subjects[:WARM_SUBJECTS] * max(1, len(subjects) // WARM_SUBJECTS)
    for name, counts in bench.turns("h", (COLD, NAIVE, WARM)):
        if name == NAIVE:
            value = _rate(lambda subject: _scan(filters, subject), scanned)
        elif name == COLD:
            trie.insert("cache.is.emptied", 0)
            trie.remove("cache.is.emptied", 0)
            value = _rate(trie.match, subjects)
        else:
            _rate(trie.match, warm[:WARM_SUBJECTS])
            value = _rate(trie.match, warm)
        if counts:
            case.add(name, value)
    yield case


def _scan(filters: Sequence[str], subject: str) -> list[int]:
    return [number for number, wanted in enumerate(filters) if matches(wanted, subject)]


def _rate(lookup: Callable[[str], object], subjects: Sequence[str]) -> float:
    begun = process_time_ns()
    for subject in subjects:
        lookup(subject)
    return len(subjects) / (process_time_ns() - begun) * 1e9
