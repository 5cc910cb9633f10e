"""A store in one file: a consistent picture taken while the service works, and put back on either engine.

The file is JSON lines, compressed: a head that names format, schema version and tables, then the rows of each table,
then a foot with their number, without which the file is not whole. It holds requests, plans and the hashes of keys;
the one that can read it can read them, so it is made readable to its owner only.
"""

import gzip
import json
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from api.jobs.stores import store_schema
from api.jobs.stores.islands_gone import ISLANDS, without_islands
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.transactions import Cursor, Database

FORMAT = "pipeplan-store/1"

ROWS = 8
"""Rows that are read or written at once."""

LEVEL = 1
"""Of compression: texts of JSON shrink to a tenth at any level."""

_Line = dict[str, Any]


def back_up(database: Database, path: Path) -> dict[str, int]:
    """Write the store to a file that is there only when it is whole; the answer is the rows by table.

    Raises FileExistsError rather than write over a backup.
    """
    if path.exists():
        raise FileExistsError(f"{path} already exists; give another name")
    counts = dict.fromkeys(store_schema.CONTENTS, 0)
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(descriptor, "wb") as raw,
        gzip.open(raw, "wt", compresslevel=LEVEL, encoding="utf-8") as file,
        database.picture() as cursor,
    ):
        for line in _lines(cursor, database):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if "row" in line:
                counts[line["table"]] += 1
        file.write(json.dumps({"end": counts}) + "\n")
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.rename(path)
    return counts


def _lines(cursor: Cursor, database: Database) -> Iterator[_Line]:
    """The head and every row."""
    columns = {table: sorted(database.columns(cursor, table)) for table in store_schema.CONTENTS}
    yield {"format": FORMAT, "schema": store_schema.VERSION, "at": database.now(), "columns": columns}
    for table, names in columns.items():
        cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
        while rows := cursor.fetchmany(ROWS):
            for row in rows:
                yield {"table": table, "row": list(row)}


def restore(database: Database, path: Path) -> dict[str, int]:
    """Fill an empty store from a backup, in one transaction; the answer is the rows by table.

    Jobs that were running wait again. Raises ValueError for a store that holds jobs or keys, and for a file that is
    not a whole backup of this schema version or an earlier one.
    """
    SqlStore(database)
    with closing(_read(path)) as lines, database.transaction() as cursor:
        head = next(lines, {})
        if head.get("format") != FORMAT:
            raise ValueError(f"{path}: is not a backup of a pipeplan store")
        if head["schema"] > store_schema.VERSION:
            raise ValueError(f"{path}: has schema version {head['schema']}; install a newer pipeplan")
        _require_empty(cursor)
        counts, end = dict.fromkeys(store_schema.CONTENTS, 0), None
        for line in lines:
            end = line.get("end")
            if end is None:
                counts[line["table"]] = counts.get(line["table"], 0) + 1
                if line["table"] != ISLANDS:
                    _insert_row(cursor, line, columns=head["columns"])
        if end is None or {table: counts.get(table, 0) for table in end} != end:
            raise ValueError(f"{path}: is cut off or damaged; use another backup")
        cursor.execute("UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL WHERE state = 'running'")
    return {table: counts[table] for table in store_schema.CONTENTS}


def _insert_row(cursor: Cursor, line: _Line, *, columns: dict[str, list[str]]) -> None:
    """One row; the names of table and columns are looked up, not taken from the file."""
    table = store_schema.CONTENTS[store_schema.CONTENTS.index(line["table"])]
    values = dict(zip(columns[table], line["row"], strict=True))
    values = without_islands(values) if ISLANDS in values else values
    if not all(name.isidentifier() for name in values):
        raise ValueError("the backup names columns that cannot exist; use another backup")
    marks = ", ".join("?" * len(values))
    cursor.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))


def _require_empty(cursor: Cursor) -> None:
    for table in ("jobs", "api_keys"):
        cursor.execute(f"SELECT COUNT(*) FROM {table}")
        row = cursor.fetchone()
        if row is not None and row[0]:
            raise ValueError(f"the store holds {row[0]} rows of {table}; restore into an empty one")
    for table in store_schema.CONTENTS:
        cursor.execute(f"DELETE FROM {table}")


def _read(path: Path) -> Generator[_Line, None, None]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is not a whole backup of a pipeplan store ({error})") from None
