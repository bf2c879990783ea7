"""The rows of a query as a table for people, as JSON, as CSV, as a Parquet file: batch by batch, whatever their number.

Values go out by the one rule of `output`.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform import drafts
from cdc_platform.commands.output import as_json, plain, warn, write_json_list, write_table
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.query.rows import Rows


@contextmanager
def until_closed() -> Iterator[None]:
    """Write as long as somebody reads: a reader that has seen enough (`| head`) ends the command well."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, or the interpreter would complain of it as it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_shown(rows: Rows, most: int) -> None:
    """A table of the first `most` rows, with a remark where there are more."""
    import pyarrow.types as pat

    def is_number(kind: pa.DataType) -> bool:
        return pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)

    names = [f">{name}" if is_number(kind) else name for name, kind in zip(rows.names, rows.schema.types, strict=True)]
    values = rows.values()
    first = list(islice(values, most))
    if next(values, None) is not None:
        more = "--limit N shows more, --json, --csv and --parquet all"
        warn(f"only the first {most} rows are shown; {more}", code="more-rows")
    write_table("", names, first)


def write_rows(rows: Rows) -> None:
    """A JSON list, an object a row."""
    names = rows.names
    objects = (dict(zip(names, row, strict=True)) for row in rows.values())
    write_json_list(map(as_json, objects))


def write_csv(rows: Rows) -> None:
    """A header and a line a row; null is empty, lists and maps are JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.names)
    for row in rows.values():
        writer.writerow(map(_cell, row))


def write_parquet(rows: Rows, file: Path, home: Path) -> None:
    """A new Parquet file, outside of the home, which is there when all rows are in it; says how many.

    Raises:
        InputError: a column has a type that Parquet has not, or the file was made by another in the meantime.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, rows.names, strict=True)])
    count = 0
    try:
        with drafts.new_file(file, home=home) as draft, ParquetWriter(draft, schema, compression="zstd") as writer:
            for batch in rows.batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                count += batch.num_rows
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(f"--parquet {file}: {error}; read the column as text, with CAST(... AS VARCHAR)") from None
    click.echo(f"{count} rows in {file}")


def _cell(value: Any) -> str:
    """A value in CSV."""
    told = plain(value)
    if told is None:
        return ""
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)
