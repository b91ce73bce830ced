"""Sensitive values that nobody declared: found by attributes' names, and by what they look like.

Names are looked at where a record is made, which costs little. Values are looked at by the
collector. A text is searched as its UTF-8 bytes by one expression for all detectors, with RE2 where
it is installed, else with Python's own: the expression means the same to both. It holds the borders
of what it finds. What it cannot say (a check digit, a name's words, whether a top-level label
exists) is asked of the few places that it names. Only the sensitive part of a text is replaced.

``docs/specs/sensitive-data.md`` says what each detector finds, and what it leaves alone.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple, get_args

from penstock.specs.errors import SpecError
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.redact.sensitivity import Sensitivity, is_hashed, redacted
from penstock.specs.redact.top_level_domains import TOP_LEVEL_LABELS

HAS_RE2: Final = find_spec("re2") is not None
"""The base install has pydantic only."""
DetectorName = Literal[
    "names", "private_key", "web_token", "token", "url_password", "named_value", "email", "card"
]
"""`names` classifies attributes by their names; the others search texts."""
DETECTORS: Final[tuple[DetectorName, ...]] = get_args(DetectorName)

_CLASSES: Final[dict[str, Sensitivity]] = {
    "private_key": "secret",
    "web_token": "secret",
    "token": "secret",
    "url_password": "secret",
    "email": "pii",
    "card": "pci",
}


class _LazyExpression:
    """An expression for bytes that is compiled when it is first used: most programs use none."""

    def __init__(self, pattern: bytes, flags: int = 0) -> None:
        self._pattern, self._flags = pattern, flags

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        return re.compile(self._pattern, self._flags)


# Names.

_NAMES: Final[dict[str, Sensitivity]] = {
    **dict.fromkeys(
        (
            "password", "passwd", "pwd", "passphrase", "secret", "client_secret", "token",
            "api_key", "apikey", "access_key", "secret_key", "private_key", "authorization",
            "credential", "credentials", "cookie", "set_cookie", "otp", "pin_code",
        ),
        "secret",
    ),
    **dict.fromkeys(
        ("card_number", "cardnumber", "credit_card", "pan", "cvv", "cvc", "iban"), "pci"
    ),
    **dict.fromkeys(
        (
            "email", "e_mail", "email_address", "phone", "phone_number", "ssn", "date_of_birth",
            "birth_date", "passport_number", "first_name", "last_name", "full_name",
        ),
        "pii",
    ),
    **dict.fromkeys(("diagnosis", "medical_record_number"), "phi"),
}  # fmt: skip
"""Sensitivity by a name's last words in snake case; `db.password` and `userPassword` end alike."""

_HARMLESS_BEFORE_TOKEN: Final = frozenset(
    (
        "bos", "cached", "cancellation", "completion", "continuation", "cursor", "end", "eos",
        "fencing", "first", "input", "last", "max", "min", "next", "num", "output", "pad", "page",
        "pagination", "prev", "previous", "prompt", "reasoning", "resume", "skip", "start", "stop",
        "sync", "total", "unk",
    )
)  # fmt: skip
"""A token of a text or a place in a list, not one that opens something."""
_BEFORE_FULL_NAME: Final = frozenset(
    (
        "account", "author", "cardholder", "client", "contact", "customer", "driver", "employee",
        "guest", "holder", "member", "owner", "passenger", "patient", "payee", "payer", "person",
        "profile", "recipient", "sender", "student", "user",
    )
)  # fmt: skip
"""Words before `full_name` that mean a person; a method or a class has a full name, too."""
_BEFORE_PAN: Final = frozenset(
    ("account", "card", "cardholder", "credit", "customer", "debit", "payment", "primary")
)
"""Words before `pan` that make it a card number; otherwise it is a camera's movement."""

_ID_WORDS: Final = frozenset(
    (
        "block", "gid", "guid", "id", "ids", "nonce", "offset", "oid", "order", "pid", "rid", "seq",
        "sequence", "sid", "snowflake", "span", "tid", "timestamp", "trace", "ts", "uid", "uuid",
    )
)  # fmt: skip
"""An undivided number behind one of them is no card's: one in forty of 16 digits looks like one."""
_CARD_WORDS: Final = frozenset(("account", "card", "cc", "credit", "debit", "pan", "payment"))

_NAME_WORDS_MAX: Final = max(name.count("_") + 1 for name in _NAMES)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[a-z0-9]+")
_MARK: Final = re.compile(r"\[redacted:[A-Za-z0-9_-]+\]")
_EMPTY_VALUES: Final = frozenset(("", "null", "none", "nil", "true", "false", "undefined"))


def snake_case(name: str) -> str:
    """A name's words, in small letters: `user.id`, `userId` and `User-Id` are `user_id`."""
    return "_".join(_WORD.findall(_HUMP.sub("_", name).lower()))


@lru_cache(maxsize=4096)
def sensitivity_of_name(name: str) -> Sensitivity | None:
    """Return the sensitivity that an attribute's name implies, if any. Only whole words count."""
    words = _WORD.findall(_HUMP.sub("_", name).lower())
    for count in range(min(_NAME_WORDS_MAX, len(words)), 0, -1):
        key = "_".join(words[-count:])
        if found := _NAMES.get(key):
            before = words[-count - 1] if len(words) > count else ""
            return found if _is_meant(key, before) else None
    return None


def _is_meant(key: str, before: str) -> bool:
    """Return whether a name means a person or a secret, given the word before it."""
    match key:
        case "token":
            return before not in _HARMLESS_BEFORE_TOKEN
        case "full_name":
            return not before or before in _BEFORE_FULL_NAME
        case "pan":
            return not before or before in _BEFORE_PAN
        case _:
            return True


@lru_cache(maxsize=4096)
def is_name_of_id(name: str) -> bool:
    """Return whether a name means an id, a place or a time, and no card number."""
    words = _WORD.findall(_HUMP.sub("_", name).lower())
    return bool(words) and words[-1] in _ID_WORDS and _CARD_WORDS.isdisjoint(words)


@lru_cache(maxsize=4096)
def suspect_names(names: tuple[str, ...]) -> Mapping[str, Sensitivity]:
    """Return the sensitivity of those attribute names that suggest one."""
    found = {name: sensitivity_of_name(name) for name in names}
    return {name: sensitivity for name, sensitivity in found.items() if sensitivity is not None}


def is_harmless(name: str, value: object) -> bool:
    """Return whether a value need not be hidden although its name suggests it.

    It is empty, was redacted before, or is the working directory (`PWD=/root`).
    """
    if value is None or value.__class__ is bool:
        return True
    if value.__class__ is not str:
        return False
    text = str(value)
    return (
        text.lower() in _EMPTY_VALUES
        or _MARK.fullmatch(text) is not None
        or is_hashed(text)
        or (text.startswith(("/", "~")) and name[-3:].lower() == "pwd")
    )


# The expression. RE2 looks neither ahead nor back, so what stands before a thing is a part of it,
# and what may not stand behind is looked at afterwards where a word's border does not say it.

_CODE: Final = r"%(?:25)??[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[bfnrt]|\x1b\[[0-9;]{0,8}m"
"""A character that stands there as its code, of which the last one is a letter or a digit: in a
URL, once or twice, in JSON within a text, and as a terminal's colour."""
_PRIVATE_KEY: Final = "(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)"
_KEY_END: Final = _LazyExpression(rb"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_TOKEN: Final = (
    rf"(?:\b|{_CODE})((?:AKIA|ASIA)[0-9A-Z]{{16}}\b"
    r"|gh[pousr]_[A-Za-z0-9]{36,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|sk_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|(?i:bearer)(?: |%20)[A-Za-z0-9._~+/-]{16,}=*)"
)
_WORDY: Final = "[A-Za-z0-9_-]"
_WEB_TOKEN: Final = (
    rf"(?:\b|[^Kk])(eyJ{_WORDY}{{8,}}"
    rf"(?:\.{_WORDY}{{8,}}\.{_WORDY}*|\.\.{_WORDY}{{8,}}\.{_WORDY}+\.{_WORDY}*)"
    rf"(?:\.\.?{_WORDY}{{8,}})*)"
)
"""A JSON web token, also an encrypted one, whose second part may be empty, with what follows it: an
encrypted one has five parts, and where two are joined, by a hyphen say, the first one's last part
is the next one's first. It begins anywhere in a word, but not in PrimaryKeyJoinColumn."""
_WEB_TOKEN_BEGIN: Final = rf"(?:\b|[^Kk])eyJ{_WORDY}{{8,}}"
_URL_LOGIN: Final = r"://([^\t-\r /:@]*:[^\t-\r /@]+)@"
_SECRET_WORDS: Final = "|".join(
    name.replace("_", "[_.-]?")
    for name in sorted(_NAMES, key=len, reverse=True)
    if not any(name != other and name.endswith(f"_{other}") for other in _NAMES)
)
_BLANKS: Final = r"(?:[\t-\r ]|\\+[fnrt]){0,8}"
_QUOTE: Final = r"""(?:\\*["']|%(?:25)?2[27])"""
_NAMED_VALUE: Final = (
    rf"((?i:{_SECRET_WORDS}))(?:{_QUOTE}?{_BLANKS}(?:=|%(?:25)?3[Dd])"
    rf"|{_QUOTE}{_BLANKS}(?::|%(?:25)?3[Aa])|{_BLANKS}:{_BLANKS}{_QUOTE})"
)
"""A name's last word with what says that a value follows: `=`, or a colon and quotes around the
name or the value. A colon alone stands in prose: `invalid token: expected a number`."""
_DOMAIN: Final = "(?:[A-Za-z0-9-]{1,63}[.])+[A-Za-z]{2,24}"
_EMAIL: Final = f"((?:@|%40){_DOMAIN})(?:[^A-Za-z0-9]|$)"
"""An address from its at-sign on; the part before is checked afterwards."""
_CODED_EMAIL: Final = f"(%40{_DOMAIN})(?:[^A-Za-z0-9]|$)"
"""The same of addresses whose at-sign stands there as its code."""
_BETWEEN: Final = r"(?:[ +-]|%20|\xc2\xa0|\xe2\x80[\x80-\x8a\x90\x91\xaf])"
"""Between the groups of a card's number: a blank, a hyphen or a plus, also Unicode's (in UTF-8)."""
_OF_16: Final = (
    "(?:4[0-9]{3}|5[1-5][0-9]{2}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)"
    "|6(?:011|4[4-9][0-9]|5[0-9]{2}|2[0-9]{2})|35(?:2[89]|[3-8][0-9]))"
)
"""First four digits of Visa, Mastercard, Discover, UnionPay and JCB."""
_OF_15: Final = "3[47][0-9]{2}"
"""Pattern of American Express numbers of 15 digits."""
_OF_14: Final = "3(?:0[0-5][0-9]|095|[689][0-9]{2})"
"""Pattern of Diners Club numbers of 14 digits."""
_CARD_NUMBER: Final = (
    rf"(?:{_OF_16}(?:[0-9]{{12}}|(?:{_BETWEEN}[0-9]{{4}}){{3}}(?:{_BETWEEN}[0-9]{{3}})?)"
    rf"|{_OF_15}(?:[0-9]{{11}}|{_BETWEEN}[0-9]{{6}}{_BETWEEN}[0-9]{{5}})"
    rf"|{_OF_14}(?:[0-9]{{10}}|{_BETWEEN}[0-9]{{6}}{_BETWEEN}[0-9]{{4}}))\b"
)
_CARD: Final = rf"(?:^|[^0-9A-Za-z_.-]|{_CODE})({_CARD_NUMBER})"
_PATTERNS: Final[dict[DetectorName, str]] = {
    "web_token": _WEB_TOKEN,
    "private_key": _PRIVATE_KEY,
    "token": _TOKEN,
    "url_password": _URL_LOGIN,
    "named_value": _NAMED_VALUE,
    "email": _EMAIL,
    "card": _CARD,
}
"""Each has one group: what is found, or where to look. Of two that begin alike the first counts."""

# What the expression cannot say.

_KEY_NAME_BYTES_MAX: Final = 128
_KEY_NAME_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_CODE_BYTES_MAX: Final = 11
_CODE_AT: Final = _LazyExpression(_CODE.encode())
_PLAIN_BYTE: Final = r"""[^\t-\r "'&;,<>(){}\[\]|\\]"""
_SCHEME: Final = "(?:(?i:bearer|basic|digest|bot)[ +])?"
_VALUE: Final = _LazyExpression(
    (
        rf"(?P<key_quote>{_QUOTE})?(?P<blank>{_BLANKS})"
        r"(?:(?P<arrow>=>)|(?P<equals>=)|(?P<coded>%(?:25)?3[Dd])|:|%(?:25)?3[Aa])"
        rf"(?P<space>{_BLANKS})(?:(?P<quote>(?(equals)\\*[\"']|{_QUOTE}))"
        rf"|(?(coded)(?P<coded_plain>{_SCHEME}(?:(?!%(?:25)?2[267]){_PLAIN_BYTE})+)"
        rf"|(?P<plain>{_SCHEME}(?![=:]){_PLAIN_BYTE}+)))"
    ).encode()
)
"""A value, with what separates it from the name's last word."""
_EMAIL_AT: Final = _LazyExpression(_EMAIL.encode())
_LOCAL_BYTES_MAX: Final = 64
_LOCAL_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._%+-"
_NO_MAIL_DOMAIN: Final = _LazyExpression(
    rb"v?[0-9]+[.x]|(?:openssh\.com|libssh\.org)\Z", re.IGNORECASE
)
"""A version (`@4.17.x`, `@2x.mov`), and what the names of SSH's algorithms end in."""
_PATH_BEHIND: Final = _LazyExpression(rb"/|:[A-Za-z0-9_.~-]*/|[.][A-Za-z0-9]")
_WORD_BEHIND: Final = _LazyExpression(rb"@|[.][0-9]|-(?![0-9]{2,4}(?![A-Za-z0-9_-]))[A-Za-z0-9_]")
"""No card has this behind it. Two to four digits behind a hyphen are its expiry or check value."""
_SEPARATOR: Final = _LazyExpression(_BETWEEN.encode())
_DOUBLED: Final = bytes.maketrans(b"0123456789", b"0246813579")
"""Each digit's double, of which both digits are added."""


class Found(NamedTuple):
    """A sensitive part of a text, from `start` to before `end`, and what stands in its place."""

    detector: DetectorName
    start: int
    end: int
    mark: bytes


@dataclass(frozen=True)
class Detectors:
    """The detectors that are on.

    Args:
        enabled: Names of detectors.
        except_fields: Paths with dots of what is left alone, as in
            ``{"body", "attributes.order_id"}``.
        except_patterns: A part in which one of them is found stays; RE2's syntax.
        mode: ``count``: what is found is counted, and stays.

    Raises:
        SpecError: There is no such detector, or a pattern is none.
    """

    enabled: frozenset[str] = frozenset(DETECTORS)
    except_fields: frozenset[str] = frozenset()
    except_patterns: tuple[str, ...] = ()
    mode: Literal["redact", "count"] = "redact"
    _kept: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is unknown; compile the patterns."""
        if unknown := sorted(self.enabled - {*DETECTORS}):
            raise SpecError(f"there is no detector {unknown[0]}; there are {', '.join(DETECTORS)}")
        object.__setattr__(self, "_kept", tuple(map(_compiled, self.except_patterns)))

    @property
    def judges_names(self) -> bool:
        return "names" in self.enabled

    @cached_property
    def pattern(self) -> str:
        """The expression of all that search texts, for bytes; empty when none does."""
        return "|".join(_PATTERNS[name] for name in self.searching)

    @cached_property
    def pattern_of_lines(self) -> str:
        """`pattern` without at-signs, which many lines have: `address_in` looks for them."""
        patterns = {**_PATTERNS, "email": _CODED_EMAIL}
        return "|".join(patterns[name] for name in self.searching)

    @cached_property
    def searching(self) -> tuple[DetectorName, ...]:
        """Detectors that search texts, in the order of the expression's groups."""
        return tuple(name for name in _PATTERNS if name in self.enabled)

    def keeps(self, part: str) -> bool:
        """Return whether an exception from the detectors applies to a part of a text."""
        return any(pattern.search(part) is not None for pattern in self._kept)

    def find(self, text: bytes, *, plainly: bool = not HAS_RE2) -> Iterator[Found]:
        """Each sensitive part of a text in UTF-8, in order; none overlaps another.

        Args:
            text: Text to search.
            plainly: Whether to search with Python's own expressions.
        """
        enabled = self.enabled & _signs(text) if plainly else self.enabled
        matches, position, after = _Matches(_text_search(enabled, plainly), text), 0, 0
        while (match := matches.first(position)) is not None:
            name, start, end = match
            found, position = _CHECKS[name](text, max(start, after), end, after)
            if found is None and name == "email" and "card" in enabled:
                found = _card_behind_at_sign(text, start)
                position = found.end if found else position
            if found is None or self._stays(text[found.start : found.end], found.mark):
                continue
            after = found.end
            yield found

    def _stays(self, part: bytes, mark: bytes) -> bool:
        return part == mark or bool(self._kept and self.keeps(part.decode("utf-8", "replace")))

    def redact(
        self,
        text: str,
        found: Callable[[DetectorName], None] | None = None,
        characters_max: int = STRING_CHARACTERS_MAX,
    ) -> str:
        """The text with a mark in the place of each sensitive part; the same object without one.

        Args:
            text: It may hold lone surrogates.
            found: Is called for each part.
            characters_max: The field holds no more; a mark may be longer than what it replaces.
        """
        if len(text) < _TEXT_CHARACTERS_MIN:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        if HAS_RE2 and not _filter(self.pattern).Match(raw):
            return text
        parts: list[bytes] = []
        end_before = 0
        for name, start, end, mark in self.find(raw):
            parts += raw[end_before:start], mark
            end_before = end
            if found is not None:
                found(name)
        if not parts:
            return text
        cleaned = b"".join((*parts, raw[end_before:])).decode("utf-8", "surrogatepass")
        return cleaned[: max(len(text), characters_max)]


_TEXT_CHARACTERS_MIN: Final = 5
"""Shorter text matches none of the patterns."""


MAY_BE_NOTHING: Final[tuple[DetectorName, ...]] = ("named_value", "card")
"""Detectors of which `is_nothing` may be true in the matches of `pattern_of_lines`."""


def is_nothing(name: DetectorName, text: bytes, start: int, end: int) -> bool:
    r"""Return whether a match within JSON is harmless in any string; False if uncertain.

    JSON may write the text around a match otherwise, by a backslash and what follows it, or the
    string's quote stands there. So this checks only what these cannot change; the string itself is
    checked for the rest.

    Args:
        name: The detector whose group matched.
        text: JSON objects, none of which has a character's code in it (`\u0040`, `\/`).
        start: First byte of the group.
        end: End of the group, exclusive.
    """
    match name:
        case "email":
            # Digits, or a code, may begin a card's number that no other match leads to.
            if text[start : start + 1] != b"@" or text[start + 1 : start + 5].isdigit():
                return False
            return (
                not _may_have_mail(text[start + 1 : end]) or _email(text, start, end, 0)[0] is None
            )
        case "named_value":
            first = max(0, start - _KEY_NAME_BYTES_MAX)
            begin = first + len(text[first:start].rstrip(_KEY_NAME_BYTES))
            if text[max(0, begin - 1) : begin] in (b"\\", b"%"):  # of which a code may be a part
                return False
            return sensitivity_of_name(text[begin:end].decode("ascii")) is None
        case "card":
            between = [*_SEPARATOR.compiled.finditer(text, start, end)]
            return b"%" not in text[max(0, start - _CODE_BYTES_MAX) : start] and not any(
                _has_check_digit(text[start:stop]) for stop in _card_ends(end, between)
            )
        case _:
            return False


def address_in(text: bytes, start: int) -> int:
    """Return where the next at-sign is that may be an address's; -1: there is none.

    Args:
        text: JSON objects, as for `is_nothing`.
        start: Where to look from.
    """
    at = text.find(b"@", start)
    while at >= 0:
        match = _EMAIL_AT.compiled.match(text, at)
        if match is not None and not is_nothing("email", text, *match.span(1)):
            return at
        at = text.find(b"@", at + 1)
    return at


# What each detector asks besides. `after` is where the part before it ended. All give what is
# found, if it is, and where to go on: behind what can hold nothing else.

_Checked = tuple[Found | None, int]


def _mark(name: DetectorName, start: int, end: int) -> Found:
    return Found(name, start, end, redacted(_CLASSES[name]).encode())


def _private_key(text: bytes, start: int, end: int, _: int) -> _Checked:
    last = _KEY_END.compiled.search(text, end)
    stop = last.end() if last else len(text)
    return _mark("private_key", start, stop), stop


def _web_token(_: bytes, start: int, end: int, __: int) -> _Checked:
    return _mark("web_token", start, end), end


def _token(_: bytes, start: int, end: int, __: int) -> _Checked:
    return _mark("token", start, end), end


def _url_password(_: bytes, start: int, end: int, __: int) -> _Checked:
    return _mark("url_password", start, end), end


def _named_value(text: bytes, start: int, end: int, after: int) -> _Checked:
    name = _name_before(text, start, end, after)
    sensitivity = sensitivity_of_name(name)
    match = _VALUE.compiled.match(text, end) if sensitivity else None
    if match is None or sensitivity is None:
        return None, end
    quote, key_quote = match["quote"], match["key_quote"]
    assigned = match["equals"] or match["coded"]
    if quote:
        begin, stop = match.end(), _end_of_quoted(text, match.end(), quote)
    elif (
        match["arrow"]
        or not (assigned or key_quote)
        or (assigned and match["space"] and not match["blank"])
    ):
        return None, end
    else:
        begin, stop = match.span("coded_plain" if match["coded"] else "plain")
    value = text[begin:stop].decode("utf-8", "replace")
    if is_harmless(name, value):
        return None, begin
    mark = redacted(sensitivity).encode()
    if key_quote and not (quote or assigned):  # a number; JSON stays JSON
        mark = key_quote + mark + key_quote
    return Found("named_value", begin, stop, mark), stop


def _name_before(text: bytes, start: int, end: int, after: int) -> str:
    """The whole name whose last word is at `start`, without a code that is before it."""
    first = max(after, start - _KEY_NAME_BYTES_MAX)
    begin = first + len(text[first:start].rstrip(_KEY_NAME_BYTES))
    for sign in (b"%", b"\\", b"\x1b"):
        at = text.rfind(sign, max(0, begin - _CODE_BYTES_MAX), begin)
        code = _CODE_AT.compiled.match(text, at) if at >= 0 else None
        if code and begin <= code.end() <= start:
            begin = code.end()
    return text[begin:end].decode("ascii")


def _end_of_quoted(text: bytes, start: int, quote: bytes) -> int:
    """Return where a quoted value ends, or the text does.

    Within JSON in JSON a quote has backslashes before it, one, three, seven for each level, and one
    that is a part of the value has more.
    """
    if quote.startswith(b"%"):
        found = text.find(quote, start)
        return found if found >= 0 else len(text)
    level, at = len(quote) - 1, start
    while (at := text.find(quote[-1:], at)) >= 0:
        backslashes = at - start - len(text[start:at].rstrip(b"\\"))
        if backslashes >= level and (backslashes - level) % (2 * (level + 1)) == 0:
            return at - level
        at += 1
    return len(text)


def _may_have_mail(domain: bytes) -> bool:
    """Return whether addresses may end in a domain, which many lines may name."""
    return (_known_domain if len(domain) <= _DOMAIN_BYTES_MAX else _is_domain)(domain)


def _is_domain(domain: bytes) -> bool:
    label = domain.rpartition(b".")[2].lower().decode("ascii")
    return label in TOP_LEVEL_LABELS and not _NO_MAIL_DOMAIN.compiled.match(domain)


_DOMAIN_BYTES_MAX: Final = 64
_known_domain: Final = lru_cache(maxsize=1024)(_is_domain)


def _email(text: bytes, start: int, end: int, after: int) -> _Checked:
    at = text.rfind(b"%40", start, start + 3)
    domain = text[(start + 3 if at == start else start + 1) : end]
    first = max(after, start - _LOCAL_BYTES_MAX)
    local = text[first + len(text[first:start].rstrip(_LOCAL_BYTES)) : start].lstrip(b".-")
    begin = start - len(local)
    if (
        not local
        or not _may_have_mail(domain)
        or _PATH_BEHIND.compiled.match(text, end)
        or text[max(0, begin - 3) : begin] == b"://"
    ):
        return None, start + 1
    return _mark("email", begin, end), end


def _card(text: bytes, start: int, end: int, _: int) -> _Checked:
    found = _whole_card(text, start, end) or _coded_card(text, start)
    return (None, start + 1) if found is None else (found, found.end)


def _whole_card(text: bytes, start: int, end: int) -> Found | None:
    between = [*_SEPARATOR.compiled.finditer(text, start, end)]
    if not between and (
        is_name_of_id(_word_before(text, start))
        or (
            text[start] == ord("2")
            and not _PAYMENT.compiled.search(text, max(0, start - 64), start)
        )
    ):
        return None
    for stop in _card_ends(end, between):
        if _has_check_digit(text[start:stop]) and not _WORD_BEHIND.compiled.match(text, stop):
            return _mark("card", start, stop)
    return None


def _card_ends(end: int, between: list[re.Match[bytes]]) -> tuple[int, ...]:
    """Return where a number with these separators may end: at 19 digits, or at 16 before 3 more."""
    return (end, between[3].start()) if len(between) == 4 else (end,)


def _word_before(text: bytes, start: int) -> str:
    """The name that a number follows, as its value or behind a blank."""
    match = _WORD_AND_SIGN.compiled.search(text, max(0, start - _ID_NAME_BYTES_MAX), start)
    return match[1].decode("ascii") if match else ""


def _coded_card(text: bytes, start: int) -> Found | None:
    """A number behind a percent sign of which the first digits may be a code, or another one."""
    percent = text.rfind(b"%", max(0, start - 5), start + 1)
    if percent < 0:
        return None
    for coded in (_CODE_OF_URL, _CODED_TWICE):
        code = coded.compiled.match(text, percent)
        match = _CARD_AT.compiled.match(text, code.end()) if code else None
        if match and (found := _whole_card(text, *match.span())):
            return found
    return None


_PAYMENT: Final = _LazyExpression(
    rb"card|\bpan\b|\bpa(?:y|id)|charge|credit|debit|bill|checkout|\bcvv|\bcvc|\bcc\b",
    re.IGNORECASE,
)
"""Before an undivided number of Mastercard's younger range, which is a fifth of all that look like
a card's: without it more than one int64 in 100,000 would be taken for one."""
_ID_NAME_BYTES_MAX: Final = 48
_WORD_AND_SIGN: Final = _LazyExpression(
    rb"""([A-Za-z][A-Za-z0-9_.-]*)(?:\\*["'])?(?:%20|[\t ])?[=:#]?(?:%20|[\t ])?(?:\\*["'])?\Z"""
)
_CARD_AT: Final = _LazyExpression(_CARD_NUMBER.encode())
_CODE_OF_URL: Final = _LazyExpression(rb"%[0-9A-Fa-f]{2}")
_CODED_TWICE: Final = _LazyExpression(rb"%25[0-9A-Fa-f]{2}")


def _card_behind_at_sign(text: bytes, start: int) -> Found | None:
    """The number behind an at-sign, or its code, that is no address."""
    if text[start : start + 1] == b"%":
        return _coded_card(text, start)
    match = _CARD_AT.compiled.match(text, start + 1)
    return _whole_card(text, *match.span()) if match else None


def _has_check_digit(number: bytes) -> bool:
    """Luhn's, of ISO/IEC 7812-1."""
    digits = _SEPARATOR.compiled.sub(b"", number)
    doubled = digits[-2::-2].translate(_DOUBLED)
    return (sum(digits[-1::-2]) + sum(doubled) - len(digits) * ord("0")) % 10 == 0


_CHECKS: Final[dict[DetectorName, Callable[[bytes, int, int, int], _Checked]]] = {
    "private_key": _private_key,
    "web_token": _web_token,
    "token": _token,
    "url_password": _url_password,
    "named_value": _named_value,
    "email": _email,
    "card": _card,
}

# Searching.


def _compiled(pattern: str) -> Any:
    """A pattern of an operator's.

    Raises:
        SpecError: It is none.
    """
    if not HAS_RE2:
        try:
            return re.compile(pattern)
        except re.error as error:
            raise SpecError(f"{pattern!r} is no regular expression: {error}") from None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise SpecError(f"{pattern!r} is no regular expression: {error}") from None


def compile_bytes(pattern: str) -> Any:
    """A pattern for bytes by RE2, which says at once where in much text it is, or nowhere."""
    import re2

    return re2.compile(pattern.encode("latin-1"), _bytes_options())


def _bytes_options() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _AUTOMATON_BYTES_MAX
    return options


_AUTOMATON_BYTES_MAX: Final = 64 << 20
"""Beyond it RE2 forgets what it knows of an expression and begins again."""


class _TextSearch:
    """The search in texts: with RE2 where it is installed, else with Python's expressions.

    Web tokens are looked for by their own expression. Both kinds look from the first
    beginning of one to its word's end before they know of any other match; looked for together, in
    a word of many beginnings they would do so again behind each match, in time that grows with the
    square of its length. What begins so and is none is skipped as a whole: the ends of those
    within it are the same.

    Args:
        enabled: Detectors.
        compiled: Makes an expression for bytes of a pattern.
    """

    def __init__(self, enabled: frozenset[str], compiled: Callable[[str], Any]) -> None:
        self.names = tuple(name for name in _PATTERNS if name in enabled and name != "web_token")
        self.others = compiled("|".join(_PATTERNS[name] for name in self.names))
        token = f"{_WEB_TOKEN}|{_WEB_TOKEN_BEGIN}"
        self.tokens = compiled(token) if "web_token" in enabled else None


class _Matches:
    """The matches of an expression in one text; each part of the text is searched once."""

    def __init__(self, search: _TextSearch, text: bytes) -> None:
        self._search, self._text = search, text
        self._token = self._next_token(0) if b"eyJ" in text else None
        self._other = self._next_other(0)

    def first(self, position: int) -> tuple[DetectorName, int, int] | None:
        """The first match at or behind a position, which never goes back: where its group is."""
        if self._token is not None and self._token.start() < position:
            self._token = self._next_token(position)
        if self._other is not None and self._other.start() < position:
            self._other = self._next_other(position)
        token, other = self._token, self._other
        if token is not None and (other is None or token.start() <= other.start()):
            return ("web_token", *token.span(1))
        if other is None:
            return None
        group = other.lastindex
        return (self._search.names[group - 1], *other.span(group))

    def _next_other(self, position: int) -> Any:
        return self._search.others.search(self._text, position) if self._search.names else None

    def _next_token(self, position: int) -> Any:
        tokens, match = self._search.tokens, None
        if tokens is not None:
            match = tokens.search(self._text, position)
            while match is not None and match.lastindex is None:
                match = tokens.search(self._text, match.end())
        return match


_TOKEN_PARTS: Final = (
    b"AKIA",
    b"ASIA",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"xox",
    b"sk_",
)
_SECRET_PARTS: Final = tuple({name.rpartition("_")[2].encode() for name in _NAMES})
_EIGHT_DIGITS: Final = _LazyExpression(rb"[0-9]{4}.{0,3}?[0-9]{4}", re.DOTALL)


def _signs(text: bytes) -> frozenset[DetectorName]:
    """Return the detectors that can find something in a text at all.

    It spares Python's expressions, which take twenty times as long as this.
    """
    lower = text.lower()
    found: dict[DetectorName, bool] = {
        "private_key": b"-----BEGIN " in text,
        "web_token": b"eyJ" in text,
        "token": b"bearer" in lower or any(part in text for part in _TOKEN_PARTS),
        "url_password": b"://" in text and b"@" in text,
        "named_value": (b"=" in text or b":" in text or b"%" in text)
        and any(part in lower for part in _SECRET_PARTS),
        "email": b"@" in text or b"%40" in text,
        "card": _EIGHT_DIGITS.compiled.search(text) is not None,
    }
    return frozenset(name for name, is_there in found.items() if is_there)


def _compiled_plainly(pattern: str) -> Any:
    return re.compile(pattern.encode(), re.DOTALL)


@lru_cache(maxsize=256)
def _filter(pattern: str) -> Any:
    """Says sooner than a search whether a pattern matches anywhere in a text."""
    import re2

    found = re2.Set.SearchSet(_bytes_options())
    found.Add(pattern.encode("latin-1"))
    found.Compile()
    return found


@lru_cache(maxsize=256)
def _text_search(enabled: frozenset[str], plainly: bool) -> _TextSearch:
    return _TextSearch(enabled, _compiled_plainly if plainly else compile_bytes)


ALL: Final = Detectors()


def redact_text(text: str) -> str:
    """The text with a mark in the place of all that `ALL` finds."""
    return ALL.redact(text)
