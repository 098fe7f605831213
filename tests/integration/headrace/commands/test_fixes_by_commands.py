"""Commands that `check`, `status` and `verify` print as a fix are run as printed on a running topology: both sites are
equal afterwards.
"""

from __future__ import annotations

import re
import shlex

import pytest

from headrace.console.exit_codes import DONE, FINDING
from tests.support.clusters import command_line
from tests.support.clusters.command_line import commands_in, run
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until

pytestmark = [pytest.mark.unit("sites", order=5), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TABLES = ("slot", "other", "person", "rated", "plain")


def typed(printed: str) -> list[str]:
    """Run the printed commands without answering a question; return the commands."""
    commands = copies_in(printed)
    for command in commands:
        command_line.typed(command)
    return commands


def copies_in(printed: str) -> list[str]:
    return [each for each in commands_in(printed) if each.startswith(("headrace copy", "headrace errors execute"))]


def test_printed_commands_are_run_and_both_sites_are_equal(sites: Sites):
    sites.free("fixes")
    sites.remake(
        "fixes",
        "CREATE TYPE addr AS (street text, zip text); CREATE TABLE person (id int PRIMARY KEY, home addr); CREATE TABLE"
        " other (id int PRIMARY KEY, v int);"
        " CREATE TABLE rated (id int PRIMARY KEY, v int); CREATE TABLE plain (id int PRIMARY KEY, v int); CREATE TABLE"
        " slot (id int PRIMARY KEY, pos int, UNIQUE (pos))",
    )
    sites.execute(
        "a", "ALTER TABLE fixes.slot DROP CONSTRAINT slot_pos_key, ADD UNIQUE (pos) DEFERRABLE INITIALLY DEFERRED"
    )
    for table in ("slot", "rated", "plain"):
        sites.execute("a", f"INSERT INTO fixes.{table} SELECT n, n FROM generate_series(1, 10) n")
    sites.execute(
        "a", "INSERT INTO fixes.person SELECT n, ROW('Elm', '1000')::fixes.addr FROM generate_series(1, 10) n"
    )
    system = sites.by("replicate: [{tables: [fixes.*], from: a, to: [b]}]")
    system.up()
    file = str(system.file)

    # The source checks a unique key at the end of the statement (case 16 of the field).
    system.execute("a", "UPDATE fixes.slot SET pos = 11 - pos; INSERT INTO fixes.other VALUES (1, 1)")
    system.execute("a", "UPDATE fixes.slot SET pos = pos + 1")
    system.wait_caught_up()
    assert system.call("apply:apply_from_a_at_b", "errors")
    code, out, err = run("check", file)
    (line,) = [line for line in (out + err).splitlines() if "behind such a transaction" in line]
    assert typed(line) == [f"headrace copy {file} fixes.slot", f"headrace errors execute {file} --all"]
    system.wait_caught_up()
    assert system.call("apply:apply_from_a_at_b", "errors") == []
    assert system.digest("a", "fixes.slot") == system.digest("b", "fixes.slot")

    # A composite type is altered (case 13a), and a column is rewritten.
    system.execute(
        "a",
        "ALTER TYPE fixes.addr DROP ATTRIBUTE zip, ADD ATTRIBUTE country text; INSERT INTO fixes.person VALUES (11,"
        " ROW('Oak', 'CH'))",
    )
    system.execute(
        "a", "ALTER TABLE fixes.rated ALTER v TYPE int USING v * 100; INSERT INTO fixes.rated VALUES (11, 11)"
    )
    system.wait_caught_up()

    def said() -> list[str]:
        _, out, err = run("status", file, "--verbose")
        found = [each for each in copies_in(out + err) if "copy" in each]
        return found if len(found) == 2 else []

    wait_until("status says it of both", said)
    code, out, err = run("check", file)
    (statement,) = {
        each[1] for each in re.finditer(r'(ALTER TYPE "fixes"."addr" [^;]*);', out + err) if "RENAME" in each[1]
    }
    system.execute("b", statement)
    assert sorted(map(str.strip, typed("; ".join(said())))) == [
        f"headrace copy {file} fixes.person",
        f"headrace copy {file} fixes.rated",
    ]

    # Rows that a user changed at the destination.
    system.execute("b", "UPDATE fixes.plain SET v = 0 WHERE id < 4; DELETE FROM fixes.plain WHERE id = 9")
    code, out, err = run("verify", file)
    assert code == FINDING
    (command,) = typed(out + err)
    assert shlex.split(command) == ["headrace", "copy", file, '"fixes"."plain"']
    system.assert_converged([f"fixes.{table}" for table in TABLES])
    wait_until("nothing is said any more", lambda: run("status", file)[0] == DONE)


SUBSET = """
captures:
  capture_a: {{site: a, source: a, queue: q_a, rules: {{include: [{{table: fixes.plain}}{part}]}}}}
replicate: [{{tables: [fixes.*], from: a, to: [b]}}]
"""
PART = ', {table: fixes.part, subset: "dept = 50"}'


@pytest.mark.soak
def test_capture_process_stopped_by_a_change_without_old_values_resumes(sites: Sites):
    sites.free("fixes")
    sites.remake(
        "fixes",
        "CREATE TABLE part (id int PRIMARY KEY, dept int, note text); ALTER TABLE part ALTER note SET STORAGE EXTERNAL;"
        " CREATE TABLE plain (id int PRIMARY KEY, v int)",
    )
    sites.execute(
        "a",
        "ALTER TABLE fixes.part REPLICA IDENTITY FULL; INSERT INTO fixes.part SELECT n, n % 3 * 25, repeat('x', 9000)"
        " FROM generate_series(1, 30) n",
    )
    system = sites.by(SUBSET.format(part=PART))
    system.up()
    file = str(system.file)
    system.execute(
        "a",
        "ALTER TABLE fixes.part REPLICA IDENTITY DEFAULT; UPDATE fixes.part SET dept = 50 WHERE id = 3; INSERT INTO"
        " fixes.plain VALUES (1, 1)",
    )
    stopped = wait_until(
        "the capture process stops", lambda: (now := system.status("capture:capture_a"))["state"] == "ABORTED" and now
    )
    hint = stopped["last_error"]["hint"]
    assert "let the source log whole old rows of the table" in hint
    statement = next(line for line in run("plan", file)[1].splitlines() if "REPLICA IDENTITY FULL" in line)
    system.execute("a", statement[statement.index("ALTER TABLE") :].partition(";")[0])
    assert (
        "take the table out of the rules, `headrace up FILE`, then put it back and `headrace up FILE` again: it is"
        " copied anew" in hint
    )
    sites.by(SUBSET.format(part=""))
    assert run("up", file)[0] == DONE
    system = sites.by(SUBSET.format(part=PART))
    assert run("up", file)[0] == DONE
    system.execute("a", "UPDATE fixes.part SET dept = 50 WHERE id = 4; UPDATE fixes.part SET dept = 0 WHERE id = 5")
    system.last[:] = [system.deployment]
    system.wait_caught_up()
    rows = "SELECT id, md5(note) FROM fixes.part WHERE dept = 50 ORDER BY id"
    assert system.execute("a", rows) == system.execute("b", rows)
    assert system.execute("b", "SELECT count(*) FROM fixes.part WHERE dept <> 50") == [(0,)]
    assert system.digest("a", "fixes.plain") == system.digest("b", "fixes.plain")
