#!/bin/sh
# A job cannot be deferred to a queue of procrastinate's whose name has 41 letters, though its column has room for 128.
#
# What surprises: `queue_name` is a `varchar(128)`, and no page names a smaller limit. A trigger tells workers of every
# new job on a channel of PostgreSQL's, `procrastinate_queue_v1#` and the queue's name; channels have at most 63 bytes.
# So a longer name fails with the insertion, as "channel name too long", although nobody listens. Bytes count, not
# letters. Who has a queue for each tenant needs short names for tenants, or hashes of them.
#
# Seen with procrastinate 3.10.0 and pgserver 0.1.4 (PostgreSQL 16):
#     room for 128; a queue of 40 letters: deferred; of 41: channel name too long
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet procrastinate==3.10.0 'psycopg[binary]==3.3.9' pgserver==0.1.4
"$folder/venv/bin/python" -W ignore - "$folder/data" <<'PYTHON'
import logging
import sys

import pgserver
import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException

ROOM = "SELECT character_maximum_length FROM information_schema.columns WHERE table_name = 'procrastinate_jobs' AND column_name = 'queue_name'"
logging.disable(logging.WARNING)
server = pgserver.get_server(sys.argv[1])
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=server.get_uri()))


def defer(letters: int) -> str:
    try:
        app.configure_task("task", queue=letters * "q").defer()
    except ConnectorException as error:
        return str(error.__cause__).partition("\n")[0]
    return "deferred"


with app.open(), psycopg.connect(server.get_uri()) as connection:
    app.schema_manager.apply_schema()
    (room,) = connection.execute(ROOM).fetchone()
    short, long = defer(40), defer(41)
server.cleanup()
print(f"room for {room}; a queue of 40 letters: {short}; of 41: {long}")
sys.exit((room, short, long) != (128, "deferred", "channel name too long"))
PYTHON
