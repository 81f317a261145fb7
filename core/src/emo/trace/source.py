"""Opening a trace: what the file is, by its content, and its bytes, decompressed as they come.

A trace that was cut off (a full disk, a killed process) is still worth reading, so
a gzip stream that ends early or breaks gives what could be decompressed, and says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from emo.errors import TraceError

CHUNK_BYTES = 1 << 18
"""How much is decompressed at a time: small enough to stay in the cache until it is read."""

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # zlib's way to say: expect a gzip header

_MAGIC = (
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x28\xb5\x2f\xfd", "Zstandard-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ", "xz-compressed data"),
    (GZIP_MAGIC, "gzip-compressed data"),
    (b"\x7fELF", "an ELF binary"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


def describe(head: bytes) -> str:
    """What a file that begins with ``head`` is, in words: for messages."""
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if not head:
        return "an empty file"
    if b"\x00" in head:
        return "binary data"
    start = head[:24].decode("utf-8", "replace")
    return f"text that begins with {start!r}"


class Source:
    """The decompressed bytes of one file, once, front to back. A context manager.

    ``head``       the first decompressed bytes (up to ``CHUNK_BYTES``; empty for an empty file)
    ``truncated``  the compressed stream ended early or was damaged; final once ``chunks`` is exhausted
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open ``path``. Raises :class:`TraceError` if it cannot be read."""
        self.path = Path(path)
        self.truncated = False
        try:
            self._file: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            magic = self._read()
            self.gzip = magic.startswith(GZIP_MAGIC)
            self._chunks = self._gunzipped(magic) if self.gzip else self._plain(magic)
            self.head = next(self._chunks, b"")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """All bytes, ``head`` first, in pieces of at most ``CHUNK_BYTES``."""
        if self.head:
            yield self.head
        yield from self._chunks

    def _plain(self, first: bytes) -> Iterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = self._read()

    def _gunzipped(self, first: bytes) -> Iterator[bytes]:
        """Members of a gzip file, one after the other; what follows the last one is ignored."""
        pending = first
        while pending.startswith(GZIP_MAGIC):
            member = zlib.decompressobj(_GZIP_WINDOW)
            while not member.eof:
                if not pending:
                    pending = self._read()
                    if not pending:
                        self.truncated = True
                        return
                try:
                    chunk = member.decompress(pending, CHUNK_BYTES)
                except zlib.error:
                    self.truncated = True
                    return
                pending = member.unconsumed_tail
                if chunk:
                    yield chunk
            pending = member.unused_data or self._read()
            if len(pending) == 1:  # a magic number may lie across two reads
                pending += self._read()

    def _read(self) -> bytes:
        try:
            return self._file.read(CHUNK_BYTES)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> TraceError:
        return TraceError(
            self.path,
            f"cannot be read ({error.strerror or error})",
            expected="expected a readable trace file",
            hint="check the path and its permissions",
        )
