"""Which connector speaks to a site's database, and how the other components learn to reach it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from streams.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from databases.embedded import EmbeddedServer
    from databases.ports import DestinationDatabase, LogDecoder, SourceDatabase, SourceTable, StreamOptions
    from streams.lcr_batch import TableVersion
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["decoder_for", "describe_tables", "embedded_server", "open_destination", "open_source", "remove_from", "site_folder"]


def site_folder(spec: TopologySpec, site: str) -> Path:
    """Everything a site keeps on disk."""
    return spec.state_dir / "sites" / site


def embedded_server(spec: TopologySpec, site: SiteSpec) -> EmbeddedServer:
    """The steering of a site's embedded server; it need not run."""
    from databases.embedded import EmbeddedServer

    return EmbeddedServer(
        site_folder(spec, site.name) / "database", version=site.database.version, name=f"{spec.name}-{site.name}"
    )


def open_source(dsn: str, site: str) -> SourceDatabase:
    """The source half of the connector; connects when it is first used."""
    from databases.postgres.source import PostgresSource

    return PostgresSource(dsn, site=site)


def open_destination(dsn: str, site: str) -> DestinationDatabase:
    """The destination half of the connector; connects when it is first used."""
    from databases.postgres.destination import PostgresDestination

    return PostgresDestination(dsn, site=site)


def remove_from(spec: TopologySpec, site: SiteSpec, dsn: str) -> tuple[str, ...]:
    """Remove what the topology made in a site's database: what was done, and what stays and why, a line each."""
    from contextlib import closing

    lines: tuple[str, ...] = ()
    if any(capture.source == site.name for capture in spec.captures):
        with closing(open_source(dsn, site.name)) as source:
            lines += source.remove(spec.name)
    # After the slot: what it alone would still read needs no origins any more.
    if any(apply.site == site.name for apply in spec.applies):
        with closing(open_destination(dsn, site.name)) as destination:
            lines += destination.remove(spec.name)
    return lines


def describe_tables(dsn: str, site: str, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
    """The tables as the source's log will describe them: for comparing them with the destination's beforehand."""
    from contextlib import closing

    from databases.postgres.connection import connect, translated
    from databases.postgres.destination_catalog import describe_table, table_version
    from databases.postgres.source import PostgresSource

    with closing(PostgresSource(dsn, site=site)) as source:
        is_binary = source.choose_binary(tables)
    with closing(connect(dsn, application_name="headrace preflight")) as connection, translated("describing the tables"):
        found = [describe_table(connection, table.owner, table.name) for table in tables]
        return tuple(table_version(catalog, is_binary=is_binary) for catalog in found if catalog is not None)


def decoder_for(options: StreamOptions) -> LogDecoder:
    """The decoder of a log stream's bytes.

    Raises:
        ConfigError: redo of a database this version cannot read.
    """
    if options.database_kind == "postgres":
        from databases.postgres.pgoutput import PostgresLogDecoder

        return PostgresLogDecoder(options)
    raise ConfigError(f"redo of a {options.database_kind} database cannot be read", hint="upgrade Headrace at this site")
