"""Records of indexes that are made outside the transactions of the data: from the DDL LCR until each is made or left out.

An apply server's session writes and changes them (`add_job`, `follow_jobs`) in the transaction of the DDL. The driver's
worker runs them (`headrace.databases.postgres.destination.index_jobs`), and deletes a job together with the outcome in
the history of DDL.

Whoever runs a job, changes it, or changes its table, has the job's advisory lock: a session that runs it, or a
transaction that changes it. Nobody waits for that lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.databases.ports import DdlJob, DdlPlace
from headrace.databases.postgres.connection import qualified, storable
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    import psycopg

    from headrace.databases.ports import DdlOutcome
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.structure import IndexPart

__all__ = [
    "IndexJob",
    "add_job",
    "cancel_job",
    "change_job",
    "end_job",
    "fail_job",
    "job_lock_key",
    "jobs_of_table",
    "list_jobs",
    "read_job",
    "start_job",
]

_COLUMNS = (
    'j.number, j.source, j.order_scn, j."position", j.source_index, j.owner, j.name, j.index_name, j.definition,'
    " j.relation::int8, j.state, j.attempts"
)
_ADD = """INSERT INTO headrace.ddl_job (topology, apply, source, transaction_id, order_scn, "position", source_relation,
    source_index, owner, name, index_name, definition, relation)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, pg_catalog.to_regclass(%s))"""
_OF_TABLE = f"""SELECT {_COLUMNS} FROM headrace.ddl_job j WHERE j.topology = %s AND j.apply = %s AND j.source = %s
    AND j.source_relation = %s AND j.state <> 'CANCELLED' ORDER BY j.number"""
_READ = f"SELECT {_COLUMNS} FROM headrace.ddl_job j WHERE j.topology = %s AND j.apply = %s AND j.number = %s"
_LIST = """SELECT number, owner, name, index_name, state, attempts, problem, fix,
    (extract(epoch FROM added_at) * 1000000)::int8 FROM headrace.ddl_job WHERE topology = %s AND apply = %s ORDER BY number"""
_CHANGE = "UPDATE headrace.ddl_job SET owner = %s, name = %s, index_name = %s, definition = %s WHERE number = %s"
_CANCEL = "UPDATE headrace.ddl_job SET state = 'CANCELLED', problem = '', fix = '' WHERE number = %s"
# Of the newest epoch only: an older driver that thaws must not write over what its successor has.
_OWN = """number = %(number)s AND EXISTS (SELECT FROM headrace.apply_process p WHERE p.topology = %(topology)s
    AND p.apply = %(apply)s AND p.epoch = %(epoch)s)"""
_START = f"""UPDATE headrace.ddl_job SET state = 'RUNNING', attempts = attempts + 1, changed_at = pg_catalog.clock_timestamp()
    WHERE {_OWN}"""
_FAIL = f"""UPDATE headrace.ddl_job SET state = CASE state WHEN 'CANCELLED' THEN state ELSE 'FAILED' END,
    problem = %(problem)s, fix = %(fix)s, changed_at = pg_catalog.clock_timestamp() WHERE {_OWN}"""
_DELETE = f"DELETE FROM headrace.ddl_job WHERE {_OWN}"
_END = """UPDATE headrace.ddl_history SET outcome = %s, statements = %s, reason = %s, applied_at = pg_catalog.clock_timestamp()
    WHERE topology = %s AND apply = %s AND order_scn = %s AND "position" = %s AND outcome = 'SCHEDULED'"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexJob:
    """An index to be made.

    Args:
        number: of the job.
        place: of the change in the source's log.
        source_index: the source's number of the index.
        table: the table here.
        index: name of the index.
        definition: statement that makes it, without CONCURRENTLY, as the source's server printed it.
        relation: number of the table here.
        state: as for `DdlJob`.
        attempts: how often it began.
    """

    number: int
    place: DdlPlace
    source_index: int
    table: TableName
    index: str
    definition: str
    relation: int
    state: str
    attempts: int


def job_lock_key(number: int) -> int:
    """Return the number of a job's advisory lock."""
    digest = hashlib.sha256(f"headrace:ddl_job/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


# ---------------------------------------------------------------------- the transaction of the DDL


def add_job(
    connection: psycopg.Connection[Any],
    identity: SessionIdentity,
    record: DdlRecord,
    place: DdlPlace,
    table: TableName,
    index: IndexPart,
) -> None:
    """Record an index that is to be made.

    Args:
        connection: of the session, in its transaction, with its own rights.
        identity: of the session.
        record: the change that makes it.
        place: of the change.
        table: the table here.
        index: as the source has it.
    """
    of = (identity.topology, identity.apply, place.source, place.transaction_id, place.order_scn, place.position)
    names = (*table, index.name, index.definition)
    connection.execute(_ADD, (*of, record.relation, index.number, *names, qualified(*table)))


def jobs_of_table(
    connection: psycopg.Connection[Any], identity: SessionIdentity, source: str, relation: int
) -> list[IndexJob]:
    """Return a table's jobs.

    Args:
        connection: as for `add_job`.
        identity: of the session.
        source: site of the table.
        relation: number of the table there.
    """
    parameters = (identity.topology, identity.apply, source, relation)
    return [_job(row) for row in connection.execute(_OF_TABLE.encode(), parameters).fetchall()]


def change_job(connection: psycopg.Connection[Any], number: int, table: TableName, index: IndexPart) -> None:
    """Let a job make the index as the source has it by now."""
    connection.execute(_CHANGE, (*table, index.name, index.definition, number))


def cancel_job(
    connection: psycopg.Connection[Any], topology: str, apply: str, job: IndexJob, outcome: DdlOutcome
) -> None:
    """Let a job only clear away what it has left, and record what became of its change.

    Args:
        connection: in a transaction, with the session's own rights.
        topology: name of the topology.
        apply: the apply process.
        job: the job.
        outcome: what became of its change.
    """
    connection.execute(_CANCEL, (job.number,))
    _end(connection, topology, apply, job, outcome)


# ---------------------------------------------------------------------- the driver's worker


def list_jobs(connection: psycopg.Connection[Any], topology: str, apply: str) -> tuple[DdlJob, ...]:
    """Return the jobs of an apply process."""
    return tuple(
        DdlJob(
            number=number,
            owner=owner,
            name=name,
            index=index,
            state=state,
            attempts=attempts,
            problem=problem,
            fix=fix,
            since_us=since_us,
        )
        for number, owner, name, index, state, attempts, problem, fix, since_us in connection.execute(
            _LIST.encode(), (topology, apply)
        ).fetchall()
    )


def read_job(connection: psycopg.Connection[Any], topology: str, apply: str, number: int) -> IndexJob | None:
    """Return a job; None: it is gone."""
    row = connection.execute(_READ.encode(), (topology, apply, number)).fetchone()
    return None if row is None else _job(row)


def start_job(connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int, number: int) -> None:
    """Note that an attempt begins."""
    connection.execute(_START.encode(), _own(topology, apply, epoch, number))


def fail_job(
    connection: psycopg.Connection[Any], topology: str, apply: str, epoch: int, number: int, problem: str, fix: str
) -> None:
    """Note why an attempt failed.

    Args:
        connection: in autocommit mode.
        topology: name of the topology.
        apply: the apply process.
        epoch: of the driver; an older one changes nothing.
        number: of the job.
        problem: why.
        fix: what an operator can do.
    """
    texts = {"problem": storable(connection, problem), "fix": storable(connection, fix)}
    connection.execute(_FAIL.encode(), {**_own(topology, apply, epoch, number), **texts})


def end_job(
    connection: psycopg.Connection[Any],
    topology: str,
    apply: str,
    epoch: int,
    job: IndexJob,
    outcome: DdlOutcome | None,
) -> None:
    """Delete a job, and record what became of its change.

    Args:
        connection: in autocommit mode.
        topology: name of the topology.
        apply: the apply process.
        epoch: of the driver; an older one changes nothing.
        job: the job.
        outcome: what became of it; None: that is recorded already.
    """
    with connection.transaction():
        own = _own(topology, apply, epoch, job.number)
        if connection.execute(_DELETE.encode(), own).rowcount and outcome is not None:
            _end(connection, topology, apply, job, outcome)


def _own(topology: str, apply: str, epoch: int, number: int) -> dict[str, Any]:
    """Return the parameters of `_OWN`."""
    return {"number": number, "topology": topology, "apply": apply, "epoch": epoch}


def _end(connection: psycopg.Connection[Any], topology: str, apply: str, job: IndexJob, outcome: DdlOutcome) -> None:
    statements = [storable(connection, each) for each in outcome.statements]
    of = (topology, apply, job.place.order_scn, job.place.position)
    connection.execute(_END, (outcome.kind.value, statements, storable(connection, outcome.reason), *of))


def _job(row: Sequence[Any]) -> IndexJob:
    number, source, order_scn, position, source_index, owner, name, index, definition, relation, state, attempts = row
    return IndexJob(
        number=number,
        place=DdlPlace(source=source, transaction_id=0, order_scn=order_scn, position=position),
        source_index=source_index,
        table=TableName(owner, name),
        index=index,
        definition=definition,
        relation=relation or 0,
        state=state,
        attempts=attempts,
    )
