"""Sensitive values that nobody declared: by their attributes' names, and by what they look like.

Names are looked at where a record is made, which costs little. Values are looked at by the
collector: card numbers (with their check digit), e-mail addresses, tokens, keys and passwords in
URLs. Only the sensitive part of a text is replaced.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from penstock.specs.limits import NAME_CHARACTERS_MAX
from penstock.specs.sensitive import Sensitivity, redacted

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
"""What the end of a name says, in snake case: `db.password` and `userPassword` end alike."""

_NAME_WORDS_MAX: Final = max(name.count("_") + 1 for name in _NAMES)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[a-z0-9]+")

_TEXT_CHARACTERS_MIN: Final = 5
"""Shorter text matches none of the patterns."""
_KEY: Final = (
    r"(?P<key>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"(?:.*?-----END [A-Z ]{0,40}PRIVATE KEY-----|.*))"
)
_WORDY: Final = "[A-Za-z0-9_-]"
_BEGIN: Final = rf"(?<![Kk])eyJ{_WORDY}{{8,}}+"
"""Anywhere in a word: behind `%3D`, an underscore or an escaped line break, too. Not in names like
PrimaryKeyJoinColumn, which have dots and long words behind them as well."""
_WEB_TOKEN: Final = (
    rf"(?P<web_token>{_BEGIN}"
    rf"(?:\.{_WORDY}{{8,}}+\.{_WORDY}*+"
    rf"|\.\.{_WORDY}{{8,}}+\.{_WORDY}++\.{_WORDY}*+)"
    rf"(?:\.{{1,2}}+{_WORDY}{{8,}}+)*)"
)
"""A JSON web token, also an encrypted one, whose second part may be empty, with what follows it:
an encrypted one has five parts, and where two are joined, by a hyphen say, the first one's last
part is the next one's first."""
_VAIN: Final = rf"(?P<vain>{_BEGIN})"
"""What begins like a JSON web token and is none. In that one's word there is none that begins later
either: their ends are the same. Looking for each of them anew would take time that grows with the
square of the word's length."""
BEARER: Final = "(?i:bearer(?: |%20))"
_FRONT: Final = (
    r"(?:\b|(?<=%[0-9A-Fa-f]{2})|(?<=%25[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\[bfnrt])"
    r"|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m))"
)
"""Where a word begins, also behind a character that stands there as a code that ends in a letter or
a digit: in a URL, once or twice, in JSON within a text, and as a terminal's colour."""
_EMAIL: Final = (
    r"(?P<email>[A-Za-z0-9_%+][A-Za-z0-9._%+-]{0,63}"
    r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+)"
)
_NUMBER: Final = "[2-6](?:[ -]?[0-9]){12,18}"
_OTHERS: Final = (
    rf"(?P<token>(?=[AgxsBb]){_FRONT}(?:(?:AKIA|ASIA)[0-9A-Z]{{16}}\b"
    r"|gh[pousr]_[A-Za-z0-9]{36,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|sk_(?:live|test)_[A-Za-z0-9]{16,}"
    rf"|{BEARER}[A-Za-z0-9._~+/-]{{16,}}=*))"
    r"|(?P<login>(?<=://)[^\s/:@]{1,64}:[^\s/@]{1,128}(?=@))"
    rf"|{_EMAIL}"
    r"|(?=[0-9])(?<![0-9.])(?:(?<=%)(?:25)?[0-9A-Fa-f][0-9]|(?<=%[A-Fa-f])[0-9])?"
    rf"(?P<card>{_NUMBER})(?![0-9])"
)
PATTERN: Final = re.compile(f"{_KEY}|{_WEB_TOKEN}|{_VAIN}|{_OTHERS}", re.DOTALL)
_IN_VAIN: Final = re.compile(rf"[A-Za-z0-9_-]*?(?:{_KEY}|{_OTHERS})", re.DOTALL)
"""The next that begins in a word without a web token."""
_ADDRESS: Final = re.compile(_EMAIL)
_CARD_DIGITS_MIN: Final = 13
_CARD_DIGITS_MAX: Final = 19
_CARD_CHARACTERS_MAX: Final = 2 * _CARD_DIGITS_MAX - 1
_DOUBLED: Final = str.maketrans("0123456789", "0246813579")
"""Each digit's double, of which both digits are added."""
_GROUPS: Final = (
    r"(?:[456][0-9]|3[04-9]|2[2-7])[0-9]{2,17}(?![0-9])"
    r"(?:[ -][0-9]{4,15}(?![0-9])){0,3}(?:[ -][0-9]{1,15}(?![0-9]))?"
)
"""A card's number, with what may follow it, among others: `PATTERN` takes the seconds before it and
the month of expiry behind it for its part. It begins as issuers' do, no year does, and all groups
but the last have four digits or more: there is one in nearly each row of shorter numbers."""
_LEADING: Final = re.compile(_GROUPS)
_WHOLE: Final = re.compile(f"{_NUMBER}(?![0-9])")
_GROUPED: Final = re.compile(f"(?<![0-9.]){_GROUPS}")
PARTS: Final = (
    "-----BEGIN ", "eyJ", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xox", "sk_",
)  # fmt: skip
_SEPARATOR: Final = re.compile("[ -]")
_DIGITS: Final = re.compile(r"[2-6](?:[ -]?[0-9]){12}")
"""One of these, an at-sign or the word bearer is in every text that `PATTERN` matches."""
_CLASSES: Final[dict[str, Sensitivity]] = {
    "key": "secret",
    "web_token": "secret",
    "token": "secret",
    "login": "secret",
    "email": "pii",
    "card": "pci",
}


@lru_cache(maxsize=4096)
def sensitivity_of_name(name: str) -> Sensitivity | None:
    """What the name of an attribute says of its value; None when nothing."""
    words = _WORD.findall(_HUMP.sub("_", name).lower())
    for count in range(min(_NAME_WORDS_MAX, len(words)), 0, -1):
        if found := _NAMES.get("_".join(words[-count:])):
            return found
    return None


@lru_cache(maxsize=4096)
def suspect_names(names: tuple[str, ...]) -> Mapping[str, Sensitivity]:
    """Those of a record's attributes whose names say something."""
    found = {name: sensitivity_of_name(name) for name in names}
    return {name: sensitivity for name, sensitivity in found.items() if sensitivity is not None}


def redact_text(text: str) -> str:
    """The text with a mark in the place of each sensitive part; the same object without one.

    It becomes no longer than it was, or than a name may be, so that it still fits its field.
    """
    if len(text) < _TEXT_CHARACTERS_MIN or not may_match(text):
        return text
    parts: list[str] = []
    end_before = 0
    for name, start, end in _found(text):
        parts += text[end_before:start], redacted(_CLASSES[name])
        end_before = end
    if not parts:
        return text
    judged = "".join((*parts, text[end_before:]))
    return text if judged == text else judged[: max(len(text), NAME_CHARACTERS_MAX)]


def may_match(text: str) -> bool:
    """Whether `PATTERN` can be in a text at all: a tenth of the cost of looking for it."""
    return (
        "@" in text
        or _DIGITS.search(text) is not None
        or any(part in text for part in PARTS)
        or "bearer" in text.lower()
    )


def _found(text: str) -> Iterator[tuple[str, int, int]]:
    """Each sensitive part: its group's name, its beginning and its end."""
    position = vain_end = 0
    while True:
        in_vain = position < vain_end
        match = (_IN_VAIN.match if in_vain else PATTERN.search)(text, position)
        if match is None and in_vain:
            position = vain_end
            continue
        if match is None:
            return
        name = match.lastgroup
        assert name is not None, "every alternative is a named group"
        if name == "vain":
            position, vain_end = match.span()
            continue
        start, position = match.span(name)
        if name == "card":
            found = _coded_card(text, match.start(), start) or _address(text, start, position)
            if found is None:
                continue
            name, start, position = found
        yield name, start, position


def _coded_card(text: str, begin: int, start: int) -> tuple[str, int, int] | None:
    """The first card behind what may be a code of a URL, or the number's own beginning.

    The code, and the one that it may be within (`%25`), begin at `begin`, the rest at `start`.
    """
    for at in sorted({begin, max(begin, start - 2), start}):
        whole = _WHOLE.match(text, at)
        found = whole and _card(text, *whole.span())
        if found:
            return found
    return None


def _card(text: str, start: int, end: int) -> tuple[str, int, int] | None:
    """The first card's number that begins in digits that look like one, and all that overlap it.

    They are one number, or have some among them. Each group is looked at as far as a number is
    long, so that this takes no longer where many groups follow.
    """
    first = start if _is_card(text[start:end]) else None
    limit = end + _CARD_CHARACTERS_MAX + 1
    match = _LEADING.match(text, start, limit) or _GROUPED.search(text, start, limit)
    while match and match.start() < end:
        begin = match.start()
        groups = _SEPARATOR.split(match[0])
        position = begin + len(groups[0])
        while groups and not _is_card(" ".join(groups)):
            groups.pop()
        if groups:
            stop = begin + len(" ".join(groups))
            first, end = (begin, stop) if first is None else (first, max(end, stop))
        match = _GROUPED.search(text, position, end + _CARD_CHARACTERS_MAX + 1)
    return None if first is None else ("card", first, end)


def _address(text: str, start: int, end: int) -> tuple[str, int, int] | None:
    """The e-mail address that begins in digits that looked like a card's number."""
    match = _ADDRESS.match(text, text.rfind(" ", start, end) + 1 or start)
    return match and ("email", *match.span())


def _is_card(text: str) -> bool:
    """Length and Luhn's check digit (ISO/IEC 7812-1)."""
    digits = text.replace(" ", "").replace("-", "")
    if not _CARD_DIGITS_MIN <= len(digits) <= _CARD_DIGITS_MAX:
        return False
    doubled = digits[-2::-2].translate(_DOUBLED)
    return (sum(map(int, digits[-1::-2])) + sum(map(int, doubled))) % 10 == 0
