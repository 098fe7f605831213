"""Two sources send their redo to two other sites, which capture it; all three databases get the rows from there.

With TLS, on Ray and Spark. While users write at both sources, faults happen at once at the sources and where their redo
is captured. In the end every site has what each source has.
"""

from __future__ import annotations

import random

import pytest

from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until
from tests.support.histories.random_users import random_users, wait_writing

pytestmark = [
    pytest.mark.unit("sites", order=11),
    pytest.mark.cluster,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.soak,
]

SCHEMA = "shipped"
SITES = ("a", "b", "c")  # with a database
ALL = (*SITES, "relay")
BODY = """
queues: {q_a: {site: c}, q_b: {site: relay}, q_at_a: {site: a}, q_at_b: {site: b}, q_at_c: {site: c}}
captures:
  c_a: {site: c, source: a, queue: q_a, rules: {include: [{table: shipped.of_a}]}}
  c_b: {site: relay, source: b, transport: sync, queue: q_b, rules: {include: [{table: shipped.of_b}]}}
propagations: {to_b: {from: q_a, to: q_at_b}, to_a: {from: q_b, to: q_at_a}, to_c: {from: q_b, to: q_at_c}}
applies:
  a_at_c: {site: c, source: a, queue: q_a}
  a_at_b: {site: b, source: a, queue: q_at_b}
  b_at_c: {site: c, source: b, queue: q_at_c}
  b_at_a: {site: a, source: b, queue: q_at_a}
"""
TABLES = "CREATE TABLE of_a (id int PRIMARY KEY, v int); CREATE TABLE of_b (id int PRIMARY KEY, v int)"
KEYS = 50
CHANGES = (
    "INSERT INTO shipped.of_{0} VALUES (%(id)s, %(v)s) ON CONFLICT DO NOTHING",
    "UPDATE shipped.of_{0} SET v = %(v)s WHERE id = %(id)s",
    "DELETE FROM shipped.of_{0} WHERE id = %(id)s",
)
# Components killed and the server stopped in each round: all together.
ROUNDS = ((("redo:a@c", "capture:c_b"), "a"), (("apply:a_at_b", "queue:q_b"), "c"), (("redo:b@relay", "site:a"), "b"))


@pytest.fixture
def system(sites: Sites) -> Sites:
    sites.free(SCHEMA)
    sites.by("replicate: [{tables: [idle.rows], from: a, to: [b]}]", sites=ALL)  # starts the server of c
    sites.remake(SCHEMA, TABLES, SITES)
    made = sites.by(BODY, sites=ALL)
    made.up()
    return made


def values(rng: random.Random, _: str, number: int) -> dict[str, int]:
    return {"id": rng.randrange(KEYS), "v": number}


@pytest.mark.fault(
    "killed redo receivers, capture, queue and apply processes, and servers that stop at once, all together, where redo"
    " of two sources is captured"
)
def test_sites_have_both_sources_rows_when_downstream_sites_break(
    system: Sites,
):
    with random_users(system, CHANGES, values, "downstream among sites:") as done:
        wait_writing(done)
        for names, stopped in ROUNDS:
            server = system.servers[stopped].pid()
            killed = {name: system.kill(name) for name in names}
            system.servers[stopped].stop(immediate=True)  # its site restarts it
            for name, pid in killed.items():
                system.wait_restarted(name, pid)
            wait_writing(done)
            wait_until(
                f"the server of {stopped} runs again",
                lambda stopped=stopped, server=server: system.servers[stopped].pid() not in {None, server},
            )
    overview = system.wait_overview()
    system.assert_converged([f"{SCHEMA}.of_a", f"{SCHEMA}.of_b"])
    wires = {each["name"]: each["wire"]["tls"] for each in overview["components"] if "wire" in each}
    assert set(wires.values()) == {True}
    assert {"redo:a@c", "redo:b@relay"} <= {each["name"] for each in overview["components"]}
    for table, source in (("of_a", "a"), ("of_b", "b")):
        rows = system.execute(source, f"SELECT id, v FROM shipped.{table} ORDER BY 1")
        assert rows, "every row is deleted: this proves nothing"
        assert [system.execute(site, f"SELECT id, v FROM shipped.{table} ORDER BY 1") for site in SITES] == [rows] * 3
    print(f"{dict(done)} changes")
