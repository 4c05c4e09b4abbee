"""CSV files as Arrow reads them, and what is wrong with one said with its row."""

from __future__ import annotations

import codecs
import re
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv

from instar import errors
from instar.cli.csv_columns import reader_type

CSV_BLOCK = 8 << 20  # bytes; where a table is created, types are inferred from the first block
COMPRESSION: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}
# What such files begin with; one of zstd also with a frame that is to be skipped (RFC 8878, 3.1.2).
_MAGIC = {".gz": re.compile(rb"\x1f\x8b"), ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")}
_MAGIC_BYTES = 4
_CSV_HEAD = 64 << 10
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONG_ROW = "straddl"  # what Arrow says of a row that reaches over more than one block
_STRANGE_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


def _csv_stream(path: Path) -> tuple[pa.NativeFile, pa.NativeFile]:
    """The text of a CSV file, and the file itself.

    They are Arrow's own. Its reader reads ahead in threads of Arrow, which may still be at it when the command ends;
    one that then called Python, for a Python file, would be ended by the interpreter amid C++, and the process would
    abort or never end. For the same reason nobody closes them but Arrow, when it has let go of them.
    """
    file = pa.OSFile(str(path), "rb")
    compression = COMPRESSION.get(path.suffix)
    return (pa.CompressedInputStream(file, compression) if compression else file), file


def _lone_header(path: Path) -> bytes | None:
    """A CSV file that is a header without the end of its line, of which Arrow makes nothing; None for all others."""
    stream, _ = _csv_stream(path)
    head = stream.read(_CSV_HEAD)
    return head if head and len(head) < _CSV_HEAD and not any(end in head for end in b"\r\n") else None


def ending(path: Path) -> bytes:
    """The last bytes of a CSV file: as many as two rows may have, as Arrow has none that is longer than a block."""
    stream, file = _csv_stream(path)
    if stream is file:
        file.seek(max(0, file.size() - 2 * CSV_BLOCK))
    last = deque([b"", b"", b""], maxlen=3)
    while block := stream.read(CSV_BLOCK):
        last.append(block)
    return b"".join(last)


def csv_reader(
    path: Path, wanted: pa.Schema | None, stack: ExitStack, *, ignore_empty_lines: bool = True
) -> tuple[pa.csv.CSVStreamingReader, pa.NativeFile]:
    """A reader of the file, which `stack` closes, and the file, whose place tells how far it is."""
    stream, file = _csv_stream(path)
    if (header := _lone_header(path)) is not None:
        stream = file = pa.BufferReader(header + b"\n")
    types = {} if wanted is None else {field.name: reader_type(field.type) for field in wanted}
    convert = pa.csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t", "true", "TRUE", "True", "1"],
        false_values=["f", "false", "FALSE", "False", "0"],
    )
    reader = pa.csv.open_csv(
        stream,  # type: ignore[arg-type]  # the stubs do not know that it takes those
        read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=ignore_empty_lines),
        convert_options=convert,
    )
    return stack.enter_context(reader), file


def require_text(path: Path) -> None:
    """22P04 for a CSV file that is not compressed as its name says, or has nothing in it, not even a header."""
    compression = COMPRESSION.get(path.suffix)
    with path.open("rb") as file:
        head = file.read(_MAGIC_BYTES)
    if compression and head and not _MAGIC[path.suffix].match(head):
        raise errors.error(errors.BAD_COPY_FILE, f"{path}: the file is not compressed with {compression}")
    if not head or not _csv_stream(path)[0].read(1):
        raise errors.error(errors.BAD_COPY_FILE, f"{path}: the file is empty: it has no header")


def not_utf8(path: Path, byte: int, detail: str | None = None) -> errors.Error:
    """22021, which names the byte."""
    message = f'{path}: invalid byte sequence for encoding "UTF8": 0x{byte:02x}'
    return errors.error(errors.CHARACTER_NOT_IN_REPERTOIRE, message, detail=detail)


def name_row(path: Path, found: pa.ArrowInvalid) -> None:
    """Raise what Arrow has `found` wrong in a CSV file with its row, which it knows if it reads without threads: 22P04
    for a row of more or fewer columns, 22021 for a text that is no UTF-8, or a file in UTF-16; or 54000 for a row that
    is too long. Nothing happens if it was something else."""
    if _LONG_ROW in str(found):
        raise errors.error(errors.LIMIT_EXCEEDED, f"{path}: a row is longer than {CSV_BLOCK >> 20} MiB") from None
    if (head := _csv_stream(path)[0].read(2)) in _UTF16:
        raise not_utf8(path, head[0], "The file begins as UTF-16 does.") from None
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    read = pa.csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False)
    inferred = pa.csv.ConvertOptions(check_utf8=False)
    try:
        with pa.csv.open_csv(_csv_stream(path)[0], read, parse, inferred) as opened:  # type: ignore[arg-type]  # as above
            texts = pa.csv.ConvertOptions(column_types=dict.fromkeys(opened.schema.names, pa.binary()))
        with pa.csv.open_csv(_csv_stream(path)[0], read, parse, texts) as reader:  # type: ignore[arg-type]  # as above
            done = 0
            for batch in reader:
                _require_utf8(path, batch, done)
                done += batch.num_rows
    except pa.ArrowInvalid as error:
        if strange := _STRANGE_ROW.search(str(error)):
            row, expected, given, text = strange.groups()
            raise errors.error(
                errors.BAD_COPY_FILE,
                f"{path}: a row has {given} columns, not {expected}: {text}",
                detail=f"It is row {int(row) - 1} of the file.",  # without the header
                hint="The file has an odd number of double quotes: one is never closed." if _is_open(path) else None,
            ) from None


def _is_open(path: Path) -> bool:
    """Whether a quote of a CSV file is never closed: its field then takes in what follows, further rows too."""
    stream, quotes = _csv_stream(path)[0], 0
    while part := stream.read(CSV_BLOCK):
        quotes += part.count(b'"')
    return quotes % 2 == 1


def _require_utf8(path: Path, batch: pa.RecordBatch, before: int) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for row, value in enumerate(column.to_pylist(), before + 1):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                place = f'It is in row {row} of the file, column "{name}".'
                raise not_utf8(path, error.object[error.start], place) from None


# --- a table for a file ----------------------------------------------------------------------------------------------
