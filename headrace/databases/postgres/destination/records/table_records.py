"""Records of tables at a destination: instantiations, other apply processes' copies, and row marks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

from headrace.base.errors import ConfigError
from headrace.databases.ports import AWAITING, ROWS_THERE, ArrivalSeen, Carried, Instantiation, OtherCopy, RowMark
from headrace.databases.postgres.connection import qualified
from headrace.databases.postgres.destination.fencing import EPOCH_LIVES
from headrace.lcr.scn import Scn

if TYPE_CHECKING:
    import psycopg

    from headrace.databases.ports import ApplyProgress
    from headrace.lcr.table_name import TableName

__all__ = [
    "COLUMNS",
    "IS_GONE",
    "IS_REMADE",
    "NAME_NOW",
    "instantiation_of",
    "let_go_on",
    "may_hold",
    "other_copies",
    "read_arrival",
    "read_row_marks",
    "recorded_applies",
    "write_row_marks",
]

COLUMNS = "source, identity, owner, name, scn, state, row_count, digest, problem"
# A restored dump gives every table another OID, this one, too: the rows and their record are still from one moment.
IS_REMADE = """coalesce(recorded_in = 'headrace.instantiation'::regclass
    AND to_regclass(format('%%I.%%I', owner, name)) <> relation, false)"""
NAME_NOW = """(SELECT ARRAY[n.nspname::text, c.relname::text] FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = relation AND recorded_in = 'headrace.instantiation'::regclass)"""
IS_GONE = """coalesce(recorded_in = 'headrace.instantiation'::regclass AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation), false)
    AND relation IS NOT NULL"""

# An apply server may hold the mark of a table whose rows it wrote anew, until its transaction ends, for which it may need
# the driver.
_MARK_WAIT = "200ms"

# The same table under another name counts, too (`recorded_in` as in `IS_REMADE`), and so do its partitions and the
# tables above it.
_OTHER_COPIES = """
WITH asked AS (SELECT to_regclass(format('%%I.%%I', %(owner)s::text, %(name)s::text)) AS relid),
family AS (SELECT relid FROM asked UNION SELECT r.relid FROM asked, pg_partition_tree(asked.relid) r UNION SELECT
    r.relid FROM asked, pg_partition_ancestors(asked.relid) r)
SELECT topology, apply, source, state, scn, row_count, digest, identity FROM headrace.instantiation
WHERE (topology, apply) <> (%(topology)s, %(apply)s) AND (state = ANY (%(claimed)s) OR (state = 'FAILED' AND scn > 0)) AND ((owner = %(owner)s
  AND name = %(name)s) OR (recorded_in = 'headrace.instantiation'::regclass AND relation IN (SELECT relid FROM family)))
ORDER BY topology, apply, source, identity
"""


def other_copies(
    connection: psycopg.Connection[Any], topology: str, apply: str, owner: str, name: str
) -> tuple[OtherCopy, ...]:
    """Return other apply processes' copies of a table, by topology and name."""
    values = {
        "topology": topology,
        "apply": apply,
        "owner": owner,
        "name": name,
        "claimed": sorted({*ROWS_THERE, AWAITING}),
    }
    return tuple(connection.cursor(row_factory=class_row(OtherCopy)).execute(_OTHER_COPIES, values))


def read_arrival(
    connection: psycopg.Connection[Any], topology: str, apply: str, identity: str, progress: ApplyProgress | None
) -> ArrivalSeen | None:
    """Return a table's record and progress as a snapshot shows them; None without a record or progress.

    Args:
        connection: connection in a transaction with the snapshot.
        topology: name of the topology.
        apply: name of the apply process.
        identity: identity of the source's table.
        progress: progress of the apply process, read in the same transaction.
    """
    of_apply = "topology = %s AND apply = %s"
    row = connection.execute(
        f"SELECT {COLUMNS}, {IS_REMADE} FROM headrace.instantiation WHERE {of_apply} AND identity = %s",
        (topology, apply, identity),
    ).fetchone()
    errors = connection.execute(f"SELECT FROM headrace.apply_error WHERE {of_apply} LIMIT 1", (topology, apply))
    if row is None or progress is None:
        return None
    return ArrivalSeen(record=instantiation_of(row), progress=progress, has_errors=errors.fetchone() is not None)


def let_go_on(connection: psycopg.Connection[Any], topology: str, carries: Sequence[Carried]) -> None:
    """Release AWAITING tables to continue after the SCN up to which the copy contains their changes.

    Args:
        connection: connection in the transaction that records the copy.
        topology: name of the topology.
        carries: tables and SCNs up to which the copy contains their changes.
    """
    for each in carries:
        connection.execute(
            "UPDATE headrace.instantiation SET state = 'COPIED', scn = %(scn)s, row_count = 0, digest = '',"
            " changed_at = clock_timestamp() WHERE topology = %(topology)s AND apply = %(apply)s AND identity ="
            " %(identity)s AND state = 'AWAITING' AND scn <= %(scn)s",
            {"topology": topology, "apply": each.apply, "identity": each.identity, "scn": each.scn},
        )


def instantiation_of(row: Sequence[Any]) -> Instantiation:
    """Return the record of a row.

    Args:
        row: values of `COLUMNS`, optionally followed by `IS_REMADE`, `NAME_NOW` and `IS_GONE`.
    """
    return Instantiation(
        source=row[0],
        identity=row[1],
        owner=row[2],
        name=row[3],
        scn=Scn(row[4]),
        state=row[5],
        row_count=row[6],
        digest=row[7],
        problem=row[8],
        is_remade=len(row) > 9 and row[9],
        name_now=(row[10][0], row[10][1]) if len(row) > 10 and row[10] else None,
        is_gone=len(row) > 11 and row[11],
    )


def recorded_applies(connection: psycopg.Connection[Any], topology: str) -> tuple[str, ...]:
    """Return the apply processes with a recorded table that is not LEFT."""
    query = "SELECT DISTINCT apply FROM headrace.instantiation WHERE topology = %s AND state <> 'LEFT' ORDER BY 1"
    return tuple(str(apply) for (apply,) in connection.execute(query, (topology,)))


def read_row_marks(connection: psycopg.Connection[Any], topology: str, apply: str, source: str) -> dict[str, RowMark]:
    """Return the recorded marks by identity; skip marks of another version's format."""
    query = "SELECT identity, mark FROM headrace.row_mark WHERE topology = %s AND apply = %s AND source = %s"
    found = {}
    for identity, text in connection.execute(query, (topology, apply, source)):
        with contextlib.suppress(ConfigError):
            found[str(identity)] = RowMark.from_text(text)
    return found


def is_current(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int) -> bool:
    """Return whether an epoch is valid; a valid one stays so until the open transaction ends."""
    return (
        connection.execute(
            f"SELECT FROM headrace.apply_process p WHERE topology = %s AND apply = %s AND epoch = %s AND {EPOCH_LIVES}"
            " FOR SHARE",
            (topology, apply, epoch),
        ).fetchone()
        is not None
    )


def write_row_marks(
    connection: psycopg.Connection[Any],
    topology: str,
    apply: str,
    epoch: int,
    source: str,
    marks: Mapping[str, RowMark],
    was: Mapping[str, RowMark] | None,
) -> bool:
    """Record the marks of tables; return False when the epoch has ended."""
    values = {
        "topology": topology,
        "apply": apply,
        "epoch": epoch,
        "source": source,
        "identities": list(marks),
        "marks": [mark.to_text() for mark in marks.values()],
        "any": was is None,
        "was": [was[identity].to_text() if was is not None and identity in was else None for identity in marks],
    }
    if not is_current(connection, topology, apply, epoch):
        return False
    connection.execute(f"SET LOCAL lock_timeout = '{_MARK_WAIT}'".encode())
    connection.execute(
        "INSERT INTO headrace.row_mark AS recorded (topology, apply, source, identity, mark)"
        " SELECT %(topology)s, %(apply)s, %(source)s, given.identity, given.mark"
        " FROM unnest(%(identities)s::text[], %(marks)s::text[], %(was)s::text[]) AS given (identity, mark, was)"
        " LEFT JOIN headrace.row_mark AS there ON (there.topology, there.apply, there.source, there.identity) ="
        " (%(topology)s, %(apply)s, %(source)s, given.identity) WHERE %(any)s OR there.mark IS NOT DISTINCT FROM"
        " given.was ON CONFLICT (topology, apply, source, identity) DO UPDATE SET mark = excluded.mark, marked_at ="
        " clock_timestamp() WHERE %(any)s OR recorded.mark = ANY (%(was)s::text[])",
        values,
    )
    connection.execute(
        "DELETE FROM headrace.row_mark m WHERE topology = %(topology)s AND apply = %(apply)s AND source = %(source)s"
        " AND identity <> ALL (%(identities)s)"
        " AND NOT EXISTS (SELECT FROM headrace.instantiation i WHERE (i.topology, i.apply, i.source, i.identity) ="
        " (m.topology, m.apply, m.source, m.identity))",
        values,
    )
    return True


def may_hold(connection: psycopg.Connection[Any], table: TableName, part: TableName) -> bool:
    """Return whether a table may have rows of a partition that the source's table no longer has.

    A table that is not partitioned here holds the rows of all the source's partitions.
    """
    row = connection.execute(
        "SELECT c.relkind = 'p', EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.relid ="
        " to_regclass(%s)) FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%s)",
        (qualified(*part), qualified(*table)),
    ).fetchone()
    if row is None or (row[0] and not row[1]):
        return False
    found = connection.execute(
        f"SELECT EXISTS (SELECT FROM {qualified(*(part if row[0] else table))})".encode()
    ).fetchone()
    return found is not None and bool(found[0])
