"""What a store has of a directory, as an object."""

from penstock.router.checkpoint.manifest import (
    PART_BYTES,
    WHOLE_BYTES_MAX,
    DamagedManifestError,
    Manifest,
    StoredFile,
    cut,
    decode,
    encode,
)


def test_bytes_that_are_changed_anywhere_are_damage() -> None:
    data = encode(
        Manifest("archive", "abc", {f"{number}": StoredFile(b"x") for number in range(20)})
    )
    for at in range(len(data)):
        try:
            decode(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        except DamagedManifestError:
            continue
        assert 65 <= at < 65 + 10, at  # the head of what is packed says nothing that matters


def test_a_manifest_comes_back_as_it_was() -> None:
    chunks = (f"00000001/{'0' * 64}", f"00000002/{'f' * 64}")
    it = Manifest("archive", "abc", {"a": StoredFile(b"\x00\xff"), "b/c": StoredFile(None, chunks)})
    assert decode(encode(it)) == it


def test_a_file_larger_than_is_kept_whole_is_cut_into_parts() -> None:
    assert cut(bytes(WHOLE_BYTES_MAX)) == []
    data = bytes(WHOLE_BYTES_MAX) + b"x"
    assert b"".join(cut(data)) == data
    assert [len(part) for part in cut(bytes(2 * PART_BYTES + 1))] == [PART_BYTES, PART_BYTES, 1]
