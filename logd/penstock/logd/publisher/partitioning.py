"""Which partition of a stream a key belongs to, and the subject that partition stores.

Partition 0 stores the stream's subject itself, partition n what is published on `<subject>.n`. A
key belongs to partition

    crc32(key) mod partitions

with the CRC-32 of IEEE 802.3 (of b"123456789": 0xCBF43926), as go-liftbridge's key partitioner has
it. Every publisher must agree on it, and a stream's partitions cannot be changed: so the records of
a key are in one partition, in the order in which they are published. This may never change.
"""

from zlib import crc32


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that a key belongs to, of so many.

    Raises:
        ValueError: There is not even one partition.
    """
    if partitions < 1:
        msg = f"{partitions} partitions: a stream has at least one"
        raise ValueError(msg)
    return crc32(key) % partitions


def partition_subject(subject: str, key: bytes | None, partitions: int) -> str:
    """The subject on which to publish a record with a key, of a stream with so many partitions.

    Args:
        subject: The stream's; without wildcards.
        key: Of the record; not needed where there is one partition.
        partitions: Of the stream.

    Raises:
        ValueError: There are several partitions and no key; or there is not even one.
    """
    if partitions == 1:
        return subject
    if key is None:
        msg = f"a record for one of {partitions} partitions of {subject!r} needs a key"
        raise ValueError(msg)
    number = partition_of(key, partitions)
    return f"{subject}.{number}" if number else subject
