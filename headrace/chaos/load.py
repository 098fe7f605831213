"""`--load`: clients that write at every source during faults, and know which commits were acknowledged.

They write two tables of their own, in a schema that the rules take as a whole. One table has a key; in the other, a row
that was applied twice is there twice. Each site writes its own rows. The clients survive the end of their server, as an
application does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from actors.site.connection import embedded_server
from headrace.base.errors import ConfigError
from headrace.databases.postgres.connection import qualified, quote
from headrace.load.clients import NumberedClients
from headrace.load.sessions import session
from headrace.status.applies import ApplyStatus
from headrace.status.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.deployment.deployment import Deployment
    from topology.spec import TopologySpec

__all__ = ["LOG_TABLE", "ROWS_TABLE", "SiteLoad", "first_number", "make_tables", "start_load"]

ROWS_TABLE, LOG_TABLE = "headrace_chaos", "headrace_chaos_log"
CLIENTS = 2  # per site, so that transactions overlap
PAUSE_S = 0.1  # between a client's transactions
# Every third (fifth) transaction of a client also changes (deletes) an earlier row of the client.
_CHANGED_LATER, _DELETED_LATER = 3, 5
_CREATE = """CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {rows} (site text, number bigint, version integer NOT NULL, body text, PRIMARY KEY (site, number));
CREATE TABLE IF NOT EXISTS {log} (site text, number bigint);
ALTER TABLE {log} REPLICA IDENTITY FULL"""
_BODY = "x" * 200  # a typical row size


class SiteLoad:
    """The clients of one site.

    Args:
        site: its name.
        dsn: connection string of its server.
        schema: schema of the tables.
        first: number of the first transaction, above those of earlier runs.
    """

    def __init__(self, site: str, dsn: str, schema: str, first: int) -> None:
        self.site, self.schema, self._dsn, self._first = site, schema, dsn, first
        self._rows, self._log = qualified(schema, ROWS_TABLE), qualified(schema, LOG_TABLE)
        self._clients = NumberedClients(
            lambda: dsn,
            self._write,
            [itertools.count(first + number, CLIENTS) for number in range(CLIENTS)],
            pause_s=PAUSE_S,
            what="chaos load",
        )

    def end(self) -> None:
        """End the clients after their transactions; idempotent."""
        self._clients.end()

    @property
    def acknowledged(self) -> set[int]:
        """Numbers of the transactions whose commit is certain."""
        return self._clients.acknowledged

    def problems(self) -> list[str]:
        """Compare the site's own tables with what its server acknowledged. Call it after `end`."""
        with session(self._dsn, "chaos") as connection:
            found = connection.execute(f"SELECT number FROM {self._log} WHERE site = %s", (self.site,)).fetchall()
        there = Counter(int(number) for (number,) in found)
        mine, doubtful = self._clients.acknowledged, self._clients.doubtful
        lost, twice = len(mine - set(there)), sum(count > 1 for count in there.values())
        strange = sum(number >= self._first for number in set(there) - mine - doubtful)
        return [
            f"{self.site}: {count} {words}"
            for count, words in (
                (lost, "acknowledged transactions are missing"),
                (twice, "transactions are duplicated"),
                (strange, "transactions are unknown: no client made them"),
            )
            if count
        ]

    def _write(self, connection: Any, number: int) -> None:  # noqa: ANN401 - psycopg's
        connection.execute(f"INSERT INTO {self._rows} VALUES (%s, %s, 0, %s)", (self.site, number, _BODY))
        connection.execute(f"INSERT INTO {self._log} VALUES (%s, %s)", (self.site, number))
        turn = number // CLIENTS
        if turn % _CHANGED_LATER == 0:
            connection.execute(
                f"UPDATE {self._rows} SET version = version + 1 WHERE site = %s AND number = %s",
                (self.site, number - CLIENTS),
            )
        elif turn % _DELETED_LATER == 0:
            connection.execute(
                f"DELETE FROM {self._rows} WHERE site = %s AND number = %s", (self.site, number - 2 * CLIENTS)
            )


def start_load(deployment: Deployment, tell: Callable[[str], None]) -> list[SiteLoad]:
    """Create the tables, have them replicated, and start the clients.

    Args:
        deployment: the running topology's deployment.
        tell: receives lines of text about the progress.

    Raises:
        ConfigError: a source is not embedded, or no rule takes a whole schema of it.
        HeadraceError: the tables could not be created.
    """
    spec = deployment.spec
    schemas = {site: _schema(spec, site) for site in dict.fromkeys(capture.source for capture in spec.captures)}
    dsns = {site.name: embedded_server(spec, site).dsn() for site in spec.sites if site.database.kind == "embedded"}
    tell("making the tables of the load")
    for dsn in dsns.values():
        for schema in dict.fromkeys(schemas.values()):
            make_tables(dsn, schema)
    overview = deployment.up(progress=lambda _: tell("waiting until the tables of the load are replicated"))
    _check_replicated(overview, schemas)
    return [
        SiteLoad(site, dsns[site], schema, first_number(dsns[site], schema, site)) for site, schema in schemas.items()
    ]


def make_tables(dsn: str, schema: str) -> None:
    """Create the tables of the load at one site; idempotent.

    Args:
        dsn: connection string of its server.
        schema: schema of the tables.

    Raises:
        HeadraceError: the server refuses.
    """
    statements = _CREATE.format(
        schema=quote(schema), rows=qualified(schema, ROWS_TABLE), log=qualified(schema, LOG_TABLE)
    )
    with session(dsn, "chaos") as connection:
        connection.execute(statements)


def _schema(spec: TopologySpec, source: str) -> str:
    """Return a schema of a source that rules take as a whole."""
    if spec.site(source).database.kind != "embedded":
        raise ConfigError(
            f"--load writes at embedded servers only, and site {source} has a server of yours",
            hint="write to it with your own clients, without --load",
        )
    for rules in spec.capture_rules(source):
        for rule in rules.include or ():
            if rule.name == "*" and not set("*?[") & set(rule.owner) and rules.keeps(rule.owner, ROWS_TABLE, tag=None):
                return rule.owner
    raise ConfigError(
        f"--load makes tables of its own, and no rule takes a whole schema of site {source}",
        hint="write to it with your own clients, without --load",
    )


def _check_replicated(overview: Overview, schemas: Mapping[str, str]) -> None:
    """Check that every apply process has both tables: otherwise the load would prove nothing there."""
    for component in overview.components:
        if not isinstance(component, ApplyStatus):
            continue
        there = {(table.owner, table.name) for table in component.instantiation if table.state in {"DONE", "KEPT"}}
        for name in (ROWS_TABLE, LOG_TABLE):
            if (schemas[component.source], name) not in there:
                raise ConfigError(
                    f"{component.name} does not take {schemas[component.source]}.{name}",
                    hint="write at the sources with your own clients, without --load",
                )


def first_number(dsn: str, schema: str, site: str) -> int:
    """Return a number above all that earlier runs used.

    Args:
        dsn: connection string of the site's server.
        schema: schema of the tables.
        site: name of the site.
    """
    with session(dsn, "chaos") as connection:
        row = connection.execute(
            f"SELECT coalesce(max(number), 0) FROM {qualified(schema, LOG_TABLE)} WHERE site = %s",
            (site,),
        ).fetchone()
    assert row is not None
    return (int(row[0]) // CLIENTS + 1) * CLIENTS
