"""Two sites on Ray and Spark, with TLS, whose users change the same rows during simultaneous faults.

The last change of each row wins at both sites.
"""

from __future__ import annotations

import random

import pytest

from tests.support.clusters.sites import IDLE_BETWEEN, Sites
from tests.support.histories.random_users import random_users, wait_writing

pytestmark = [
    pytest.mark.unit("sites", order=9),
    pytest.mark.cluster,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.soak,
]

SCHEMA = "meeting"
BODY = """
replicate: [{tables: [meeting.rooms], between: [a, b]}]
conflict_handlers: [{table: meeting.rooms, method: latest_timestamp, priority: [a, b]}]
tombstones: {}
"""
TABLES = (
    "CREATE TABLE rooms (id integer PRIMARY KEY, guest text, nights integer); ALTER TABLE rooms REPLICA IDENTITY FULL"
)
KEYS = 8  # few, so that both sites change a row before they get each other's change
CHANGES = (
    "INSERT INTO meeting.rooms VALUES (%(id)s, %(guest)s, 1) ON CONFLICT DO NOTHING",
    "UPDATE meeting.rooms SET guest = %(guest)s WHERE id = %(id)s",
    "UPDATE meeting.rooms SET nights = nights + 1 WHERE id = %(id)s",
    "DELETE FROM meeting.rooms WHERE id = %(id)s",
)
ROUNDS = 3


@pytest.fixture
def system(sites: Sites) -> Sites:
    sites.free(SCHEMA, idle=IDLE_BETWEEN)
    sites.remake(SCHEMA, TABLES)
    made = sites.by(BODY)
    made.up()
    return made


def values(rng: random.Random, site: str, number: int) -> dict[str, object]:
    return {"id": rng.randrange(KEYS), "guest": f"{site} {number}"}


@pytest.mark.fault(
    "a killed capture process, a killed apply process and a server that stops at once, all together, at both sites in"
    " turn"
)
def test_last_change_of_each_row_wins_under_simultaneous_faults(system: Sites):
    with random_users(system, CHANGES, values, "same rows at") as done:
        wait_writing(done)
        for number in range(ROUNDS):
            here, there = ("a", "b") if number % 2 else ("b", "a")
            captures = [each.name for each in system.spec.captures if each.site == here]
            applies = [each.name for each in system.spec.applies if each.site == here]
            killed = {
                f"capture:{captures[0]}": system.kill(f"capture:{captures[0]}"),
                f"apply:{applies[0]}": system.kill(f"apply:{applies[0]}"),
            }
            system.servers[there].stop(immediate=True)  # its site restarts it
            for name, pid in killed.items():
                system.wait_restarted(name, pid)
            wait_writing(done)
    system.wait_overview()
    system.assert_converged([f"{SCHEMA}.rooms"])
    wires = {each["name"]: each["wire"]["tls"] for each in system.wait_overview()["components"] if "wire" in each}
    assert set(wires.values()) == {True}
    met = [
        system.execute(site, "SELECT count(*) FROM headrace.dba_apply_conflict_history")[0][0] for site in ("a", "b")
    ]
    print(f"{dict(done)} changes, {met} conflicts")
    assert all(met), "hardly a conflict: this proves nothing"
