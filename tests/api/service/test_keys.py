"""Keys over the year: rotated with an overlap, last use known, everything audited; backups by command."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.service.audit import KEPT_S, AuditLog
from api.service.keys import SCOPES, USE_NOTED_S, KeyRing
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request
from tests.api.worlds import Shell


@pytest.fixture
def database(tmp_path: Path) -> SqliteDatabase:
    made = SqliteDatabase(tmp_path / "jobs.sqlite")
    SqlStore(made)
    return made


def test_no_scope_is_not_every_scope(database: SqliteDatabase, tmp_path: Path, shell: Shell):
    """Tests that a key has all scopes where none are spoken of, and none where it is given none."""
    keys = KeyRing(database)
    assert keys.create("acme", scopes=())[0].scopes == ()
    assert keys.create("acme")[0].scopes == SCOPES
    made = shell.run("keys", "create", "--tenant", "acme", "--data", str(tmp_path / "other"))
    assert made.err.strip().endswith(", ".join(SCOPES))


def test_rotation_overlaps(database: SqliteDatabase):
    """Tests that after a rotation both keys are good, and after the overlap only the new one is."""
    ring = KeyRing(database)
    old, old_text = ring.create("a", name="ci", scopes=["plans:read"], hourly_jobs=7, expires_in_s=1e6)
    new, new_text = ring.rotate(old.id, overlap_s=3600.0)
    assert ring.find(old_text) is not None
    found = ring.find(new_text)
    assert found is not None
    assert (found.tenant, found.name, found.scopes, found.hourly_jobs) == ("a", "ci", ("plans:read",), 7)
    assert found.expires_at == old.expires_at
    assert new.id != old.id
    later = database.now() + 3601.0
    database.now = lambda: later  # type: ignore[method-assign]
    assert ring.find(old_text) is None
    assert ring.find(new_text) is not None
    with pytest.raises(ValueError, match="no such key that is valid"):
        ring.rotate(old.id, overlap_s=1.0)


def test_rotation_never_lengthens_a_life(database: SqliteDatabase):
    """Tests that a key that ends sooner than the overlap ends when it would have ended."""
    ring = KeyRing(database)
    old, _ = ring.create("a", expires_in_s=10.0)
    ring.rotate(old.id, overlap_s=3600.0)
    (kept,) = (key for key in ring.listed() if key.id == old.id)
    assert kept.expires_at == old.expires_at


def test_last_use_is_known(database: SqliteDatabase):
    """Tests that the first use of a key is noted, the next one within a minute is not, and a later one is."""
    ring = KeyRing(database)
    key, text = ring.create("a")
    assert key.last_used_at is None
    moments = []
    begin = database.now()
    for offset in (0.0, USE_NOTED_S / 2, USE_NOTED_S + 1):
        database.now = lambda offset=offset: begin + offset  # type: ignore[method-assign]
        ring.find(text)
        moments.append(ring.listed()[0].last_used_at)
    assert moments == [begin, begin, begin + USE_NOTED_S + 1]


def test_what_is_done_to_keys_is_audited(database: SqliteDatabase):
    """Tests that making, rotating and revoking are written down with who did it, and old entries go."""
    ring, audit = KeyRing(database), AuditLog(database)
    old, text = ring.create("a")
    new, _ = ring.rotate(old.id, overlap_s=0.0)
    ring.revoke(new.id)
    ring.revoke(new.id)
    entries = audit.listed(limit=9)
    assert [(entry.action, entry.subject) for entry in entries] == [
        ("key.created", old.id),
        ("key.rotated", old.id),
        ("key.revoked", new.id),
    ]
    assert all("@" in entry.actor for entry in entries)
    assert text.rpartition("_")[2] not in str(entries)
    later = database.now() + KEPT_S + 1
    database.now = lambda: later  # type: ignore[method-assign]
    audit.expire()
    assert audit.listed(limit=9) == []


def test_deleting_is_audited(tmp_path: Path):
    """Tests that a deleted plan is written down with the key that did it."""
    with serving(tmp_path, needs_keys=True, num_workers=0) as running:
        key, text = running.service.keys.create("a")
        sent = {"Authorization": f"Bearer {text}"}
        body = request(running, "GET", "/v1/demo-profiles/vgg16-ethernet", headers=sent)[2]
        plan_id = json.loads(request(running, "POST", "/v1/plans", body, sent)[2])["id"]
        assert request(running, "DELETE", f"/v1/plans/{plan_id}", headers=sent)[0] == 204
        last = running.service.audit.listed(limit=1)[0]
        assert (last.actor, last.action, last.subject) == (f"key:{key.id}", "plan.deleted", plan_id)


FIRST = "pp_" + "0a" * 6 + "_" + "1b" * 24


def test_a_fresh_store_takes_the_first_key(tmp_path: Path, database: SqliteDatabase):
    """Tests that a store without keys takes the one it is given, once, and never again when that was revoked."""
    ring = KeyRing(database)
    assert ring.adopt(FIRST, tenant="ops")
    found = ring.find(FIRST)
    assert found is not None
    assert found.tenant == "ops"
    assert not ring.adopt(FIRST.replace("0a", "0c"), tenant="ops")
    ring.revoke(found.id)
    assert not ring.adopt(FIRST, tenant="ops")
    assert ring.find(FIRST) is None
    for text, tenant in (("pp_short", "ops"), (FIRST, "No Spaces")):
        with pytest.raises(ValueError, match=r"first key is malformed|tenant"):
            ring.adopt(text, tenant=tenant)


def test_a_fresh_service_can_be_asked(tmp_path: Path):
    """Tests that a service with a first key lets it in, and does not show it where settings are shown."""
    with serving(tmp_path, needs_keys=True, num_workers=0, first_key=FIRST) as running:
        assert request(running, "GET", "/v1/plans")[0] == 401
        assert request(running, "GET", "/v1/plans", headers={"Authorization": f"Bearer {FIRST}"})[0] == 200
        assert FIRST not in repr(running.service.settings)


def test_who_comes_through_a_proxy_is_not_of_this_machine(running: Running):
    """Tests that without keys a request that a proxy passed on is refused, whatever host the proxy names."""
    assert request(running, "GET", "/v1/plans")[0] == 200
    for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
        assert request(running, "GET", "/v1/plans", headers={header: "10.0.0.9"})[0] == 403


def test_backup_and_restore_are_commands(shell: Shell):
    """Tests that a store is backed up, restored into a new folder, and audited, each by one command."""
    key = shell.run("keys", "create", "--tenant", "a", "--data", "one").out.strip()
    rotated = shell.run("keys", "rotate", key.split("_")[1], "--overlap-hours", "1", "--data", "one")
    assert (rotated.code, rotated.out[:3]) == (0, "pp_"), rotated.err
    saved = shell.run("store", "backup", "b.gz", "--data", "one")
    assert saved.code == 0, saved.err
    assert shell.run("store", "backup", "b.gz", "--data", "one").code == 2
    assert shell.run("store", "backup", "c.gz", "--data", "nowhere").code == 2
    assert shell.run("store", "restore", "b.gz", "--data", "one").code == 2
    back = shell.run("store", "restore", "b.gz", "--data", "two")
    assert back.code == 0, back.err
    keys = [json.loads(shell.run("keys", "list", "--json", "--data", folder).out) for folder in ("one", "two")]
    assert keys[0] == keys[1]
    actions = [row["action"] for row in json.loads(shell.run("store", "audit", "--json", "--data", "two").out)]
    assert actions == ["key.created", "key.rotated", "store.restored"]


def test_times_can_be_read(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that keys and the audit log state their times in ISO 8601 with the zone, in JSON; in tables to the second,
    and however narrow these are, no word is broken."""
    shell.run("keys", "create", "--tenant", "a", "--expires-days", "3", "--data", "one")
    (key,) = json.loads(shell.run("keys", "list", "--json", "--data", "one").out)
    (entry,) = json.loads(shell.run("store", "audit", "--json", "--data", "one").out)
    moments = [datetime.fromisoformat(text) for text in (key["created_at"], key["expires_at"], entry["at"])]
    assert [each.utcoffset() for each in moments] == [timedelta(0)] * 3
    assert moments[1] - moments[0] == timedelta(days=3)
    assert abs(moments[0] - datetime.now(UTC)) < timedelta(minutes=5)
    assert (key["revoked_at"], key["last_used_at"]) == (None, None)
    shell.run("keys", "revoke", key["id"], "--data", "one")
    for width in ("120", "80", "30"):
        monkeypatch.setenv("COLUMNS", width)
        table = shell.run("keys", "list", "--data", "one").out
        audit = shell.run("store", "audit", "--data", "one").out
        assert {"…", "jobs an hour"}.isdisjoint(table)
        assert {key["id"], "plans:write", "created", "revoked"} <= set(table.split())
        assert {key["id"], "key.revoked"} <= set(audit.split())
        for each in moments[:2]:
            assert {f"{each:%Y-%m-%d}", f"{each:%H:%M:%SZ}"} <= set(table.split())
        assert {f"{moments[2]:%Y-%m-%d}", f"{moments[2]:%H:%M:%SZ}"} <= set(audit.split())


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e12"])
def test_keys_end_at_a_time(shell: Shell, days: str):
    """Tests that a key cannot end at a moment that is over, or that no calendar has."""
    made = shell.run("keys", "create", "--tenant", "a", "--expires-days", days, "--data", "one")
    assert (made.code, made.out) == (2, "")
    assert "give days above 0" in made.err
