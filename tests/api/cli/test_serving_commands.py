"""`pipeplan serve`, `pipeplan worker` and `pipeplan keys`: tests of api/cli/serving_commands.py."""

import json
import sqlite3
from pathlib import Path

from tests.api.worlds import Shell


def test_keys_by_command_line(shell: Shell):
    """Tests that keys are made, listed without their secret, and revoked once."""
    made = shell.run("keys", "create", "--tenant", "research", "--scope", "plans:read", "--data", "store")
    assert made.code == 0, made.err
    key_id = made.out.split("_")[1]
    listed = shell.run("keys", "list", "--data", "store", "--json")
    (row,) = json.loads(listed.out)
    assert (row["id"], row["tenant"], row["scopes"]) == (key_id, "research", ["plans:read"])
    assert made.out.strip().split("_")[2] not in listed.out
    database = (shell.folder / "store" / "pipeplan.sqlite").read_bytes()
    assert made.out.strip().encode() not in database
    assert shell.run("keys", "revoke", key_id, "--data", "store").code == 0
    assert shell.run("keys", "revoke", key_id, "--data", "store").code == 2
    assert shell.run("keys", "create", "--tenant", "No Spaces", "--data", "store").code == 2
    assert shell.run("keys", "create", "--tenant", "a", "--scope", "root", "--data", "store").code == 2


def test_open_binds_are_refused(shell: Shell):
    """Tests that serve does not start on an open address without keys, and says what to do."""
    refused = shell.run("serve", "--host", "0.0.0.0", "--no-keys", "--data", "store")
    assert (refused.code, "needs keys" in refused.err) == (2, True)
    refused = shell.run("serve", "--host", "0.0.0.0", "--data", "store")
    assert (refused.code, "pipeplan keys create" in refused.err) == (2, True)
    assert shell.run("worker").code == 2


def test_files_that_are_no_store_are_refused(shell: Shell, tmp_path: Path):
    """Tests that a broken file, and another program's, are refused in one line and stay as they are."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pipeplan.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    (tmp_path / "foreign").mkdir()
    connection = sqlite3.connect(tmp_path / "foreign" / "pipeplan.sqlite")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    for folder, words in (
        ("broken", "cannot be read as a pipeplan store"),
        ("foreign", "another program (table 'recipes')"),
    ):
        before = (tmp_path / folder / "pipeplan.sqlite").read_bytes()
        for command in (("serve", "--data"), ("keys", "list", "--data")):
            refused = shell.run(*command, str(tmp_path / folder))
            assert refused.code == 2, refused.err
            assert words in refused.err
            assert "move it away" in refused.err
        assert (tmp_path / folder / "pipeplan.sqlite").read_bytes() == before
