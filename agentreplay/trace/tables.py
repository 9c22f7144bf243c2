"""Rows of tables as records, one dict a row: CSV, parquet, SQLite. I/O."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from agentreplay.errors import TraceError

PARQUET, SQLITE = b"PAR1", b"SQLite format 3\x00"

_TABLES = ("session", "message", "part")
_BATCH_ROWS = 256


def csv_rows(stream: BinaryIO) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows under a header, with their line numbers; all values are text."""
    csv.field_size_limit(1 << 30)
    with TextIOWrapper(stream, "utf-8", "replace", newline="") as text:
        reader = csv.DictReader((line.replace("\0", "") for line in text), restval="")
        for row in reader:
            yield reader.line_num, {name: text for name, text in row.items() if name is not None}


def parquet_rows(path: Path, stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The rows of a parquet file, numbered from 1.

    Raises:
        TraceError: pyarrow isn't installed, or the file is broken.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError(
            f"{path}: it is a parquet file: pip install 'agentreplay-loadgen[parquet]'"
        ) from None
    number = 0
    try:
        whole = stream if stream.seekable() else BytesIO(stream.read())
        for batch in pyarrow.parquet.ParquetFile(whole).iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise TraceError(f"{path}: broken parquet file: {error}") from None


def sqlite_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of an agent's tables, with the name of the table and `data` decoded.

    Raises:
        TraceError: the database is broken, or holds no such table.
    """
    number = 0
    try:
        # Of a database that nobody has open SQLite would otherwise make files beside it.
        still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        address = f"{path.absolute().as_uri()}?mode=ro{still}"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.row_factory = sqlite3.Row
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            names = "SELECT name FROM sqlite_master WHERE type = 'table'"
            present = {row["name"] for row in database.execute(names)}
            for table in _TABLES:
                if table not in present:
                    continue
                for row in database.execute(f"SELECT * FROM {table}"):
                    number += 1
                    yield number, _row(table, row)
    except sqlite3.Error as error:
        raise TraceError(f"{path}: broken database: {error}") from None


def _row(table: str, row: sqlite3.Row) -> dict[str, Any]:
    values = {"table": table} | dict(row)
    try:
        values["data"] = orjson.loads(values["data"])
    except (KeyError, TypeError, ValueError):
        pass  # the row has no such column, or it holds no JSON: its reader counts it
    return values
