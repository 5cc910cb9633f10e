"""Who did what to keys, plans and the store: tests of api/service/audit.py."""

from pathlib import Path

from api.jobs.stores.sqlite import SqliteDatabase
from api.service.audit import AuditLog
from tests.api.service.test_damage import NO_TEXT
from tests.api.worlds import Shell


def test_commands_name_what_is_damaged(shell: Shell):
    """Tests that `keys list` and a broken file end with exit code 2 and a word about what to do."""
    shell.run("keys", "create", "--tenant", "a", "--data", "one")
    database = SqliteDatabase(Path("one/pipeplan.sqlite"))
    AuditLog(database).add(actor="a", action="b", subject="c")
    with database.transaction() as cursor:
        cursor.execute(f"UPDATE api_keys SET name = {NO_TEXT}")
    database.close_all()
    listed = shell.run("keys", "list", "--data", "one")
    assert (listed.code, listed.out) == (2, "")
    assert "is damaged; restore a backup" in listed.err
