"""The objects that records are decoded into: with slots for the keys that records turn out to have.

A view of all kinds wants some eighty keys, and a record has eight. Objects with all eighty slots
are slow to make and to look through. So where many keys are wanted, the objects for most records
have slots for the keys that were met so far, wanted or not, and refuse records with others, each of
which is then decoded whole, and its keys are met from there on. Any object can be asked for every
slot.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

NULL_TEXT: Final = b"null"
NULL: Final = msgspec.Raw(NULL_TEXT)
"""What a key that is kept as JSON has where it is absent."""

FEW: Final = 16
"""Wanted keys up to which it is no gain to know which of them are met."""

MET_MAX: Final = 256
"""Keys for which there are slots, wanted or not. Records that have more are decoded whole."""

_keys_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowTypes:
    """Those of one decoder.

    Args:
        slots: The attribute for each wanted key.
        types: What each wanted key is decoded as; `msgspec.Raw` keeps its JSON.

    Attributes:
        whole: With a slot for each wanted key.
        decode: Decodes a record, with the keys that were met; raises what msgspec does.
        present: The wanted keys that some record may have had; no record had another one.
    """

    def __init__(self, slots: Mapping[str, str], types: Mapping[str, Any]) -> None:
        self._slots = slots
        self._types = types
        self._met: set[str] = set()
        self.present: set[str] = set()
        self.whole = self._type_for("Row", slots)
        self._decode_whole = msgspec.json.Decoder(self.whole).decode
        if len(slots) > FEW:
            self._meet(())
        else:
            self._take_all()

    def decode_unmet(self, text: bytes | None) -> Any:
        """Decode a record that `decode` refuses; from now on it takes others with the same keys.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError: It is not as wanted.
        """
        row = self._decode_whole(text)  # type: ignore[arg-type] # None is a TypeError
        self._meet(_keys_of(text))  # type: ignore[arg-type]
        return row

    def note(self, keys: Iterable[str]) -> None:
        """A row that is made otherwise has these keys."""
        self.present.update(self._slots.keys() & keys)

    def _meet(self, keys: Iterable[str]) -> None:
        self._met.update(keys)
        if len(self._met) > MET_MAX or not all(map(_can_be_named, self._met)):
            self._take_all()
            return
        self.note(keys)
        self.decode = msgspec.json.Decoder(self._narrow()).decode

    def _take_all(self) -> None:
        self.present.update(self._slots)
        self.decode = self._decode_whole

    def _narrow(self) -> Any:
        """With slots for the keys that were met; the others have the value of absent ones."""
        slots = {key: self._slots.get(key, f"other{at}") for at, key in enumerate(self._met)}
        absent = {
            slot: _default(self._types[key])
            for key, slot in self._slots.items()
            if key not in self._met
        }
        return self._type_for("NarrowRow", slots, absent)

    def _type_for(
        self, name: str, slots: Mapping[str, str], absent: Mapping[str, Any] | None = None
    ) -> Any:
        types = {key: self._types.get(key, msgspec.Raw) for key in slots}
        return msgspec.defstruct(
            name,
            [(slot, types[key], _default(types[key])) for key, slot in slots.items()],
            namespace={"problem": None, **(absent or {})},
            rename={slot: key for key, slot in slots.items()},
            forbid_unknown_fields=absent is not None,
            gc=False,
            eq=False,
        )


def _default(kind: Any) -> Any:
    return NULL if kind is msgspec.Raw else None


def _can_be_named(key: str) -> bool:
    """Whether msgspec takes it as the name of a field."""
    return '"' not in key and "\\" not in key and all(it >= " " for it in key)
