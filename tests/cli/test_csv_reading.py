"""CSV files that are a header alone, and those in which something is wrong with a row, which the error names."""

from __future__ import annotations

import gzip
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from instar import errors
from instar.cli import transfer

FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("raw", pa.binary()),
    pa.field("key", pa.binary(16)),
]
WANTED = pa.schema(FIELDS)


def rows(path: Path) -> int:
    """How many rows the file has, all of which are read."""
    with ExitStack() as stack:
        source = transfer.open_source(path, WANTED, stack, lambda _bytes: None)
        return sum(batch.num_rows for batch in source.batches)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("header", ["id", "id,name", 'id,"name"', "id,name\n", "id,name\r\n"])
def test_a_header_alone_has_no_rows(tmp_path: Path, name: str, header: str):
    path = tmp_path / name
    path.write_bytes(gzip.compress(header.encode()) if name.endswith(".gz") else header.encode())
    with ExitStack() as stack:
        source = transfer.open_source(path, WANTED, stack, print)
        assert source.schema.names == header.strip().replace('"', "").split(",")
    assert rows(path) == 0


@pytest.mark.parametrize(
    ("content", "code", "message", "detail"),
    [
        (b"id,name\n\n1,x\n2\n", errors.BAD_COPY_FILE, "a row has 1 columns, not 2: 2", "It is row 2 of the file."),
        (b'id,name\n1,"x\ny"\n2,y,z\n', errors.BAD_COPY_FILE, "not 2: 2,y,z", "It is row 2 of the file."),
        (
            b"id,name\n1,x\n2,a\xffb\n",
            errors.CHARACTER_NOT_IN_REPERTOIRE,
            "0xff",
            'in row 2 of the file, column "name"',
        ),
        (b"id,raw\n1,00\n2,\\x0g\n", errors.INVALID_PARAMETER, 'digit: "g"', 'in row 2 of the file, column "raw"'),
        (b"id,name\n1," + b"x" * (20 << 20) + b"\n2,y\n", errors.LIMIT_EXCEEDED, "a row is longer than 8 MiB", ""),
        (b"id,key\n1,\n2,00\n", errors.INVALID_TEXT, 'type uuid: "00"', 'in row 2 of the file, column "key"'),
    ],
)
def test_what_is_wrong_with_a_row_names_it(tmp_path: Path, content: bytes, code: str, message: str, detail: str):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(errors.Error) as caught:
        rows(tmp_path / "t.csv")
    assert caught.value.sqlstate == code
    assert message in caught.value.message
    assert detail in (caught.value.detail or "")


@pytest.mark.parametrize(("content", "is_open"), [(b'id,name\n"1,x\n2,y\n', True), (b'id,name\n"1","x",2\n', False)])
def test_a_quote_that_is_never_closed_is_told(tmp_path: Path, content: bytes, is_open: bool):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(errors.Error, match="columns, not 2") as caught:
        rows(tmp_path / "t.csv")
    assert (caught.value.hint is not None) == is_open
