"""What Headrace needs of a database, as ports. Every connector passes one contract suite (`tests/contract`).

A connector has a source half (`SourceDatabase`, `LogStream`, `LogDecoder`) and a destination half
(`DestinationDatabase`, `DestinationSession`); what reads and writes whole tables is in `databases.copying`. One module
for the log, one for each half, one for what both say beforehand. Positions are SCNs here; a connector translates its
own.
"""

from __future__ import annotations

from databases.ports.conflicts import ConflictRecord, LastChange, RowInTheWay, RowQuestion, WriteTimes
from databases.ports.destination import (
    BEGUN,
    ROWS_THERE,
    ApplyProgress,
    DestinationColumn,
    DestinationDatabase,
    DestinationSession,
    DestinationTable,
    Diversion,
    ErrorTransaction,
    ForeignKey,
    FoundRows,
    Instantiation,
    LogPositions,
    OtherCopy,
    PartOf,
    ScnRange,
    TruncatedTable,
    Write,
    are_comparable,
)
from databases.ports.error_queue import ErrorEdit, TakenErrors
from databases.ports.handler_sql import HandlerSql, SqlResult
from databases.ports.log import (
    DecodedChunk,
    DictionaryBuild,
    DictionaryTable,
    LogChunk,
    LogDecoder,
    LogStream,
    StreamOptions,
)
from databases.ports.planning import (
    ComputedColumn,
    DomainColumn,
    EnumLabels,
    Finding,
    LoggedTable,
    LogNeed,
    NamedType,
    PlannedApply,
    PlannedStatement,
    ShapedPartition,
    TableShape,
)
from databases.ports.row_marks import MarkedColumn, MarkedField, MarkedLabel, MarkedPart, RowMark
from databases.ports.source import NEVER_CAPTURED, CapturedTable, Snapshot, SourceDatabase, SourceTable

__all__ = [
    "BEGUN",
    "NEVER_CAPTURED",
    "ROWS_THERE",
    "ApplyProgress",
    "CapturedTable",
    "ComputedColumn",
    "ConflictRecord",
    "DecodedChunk",
    "DestinationColumn",
    "DestinationDatabase",
    "DestinationSession",
    "DestinationTable",
    "DictionaryBuild",
    "DictionaryTable",
    "Diversion",
    "DomainColumn",
    "EnumLabels",
    "ErrorEdit",
    "ErrorTransaction",
    "Finding",
    "ForeignKey",
    "FoundRows",
    "HandlerSql",
    "Instantiation",
    "LastChange",
    "LogChunk",
    "LogDecoder",
    "LogNeed",
    "LogPositions",
    "LogStream",
    "LoggedTable",
    "MarkedColumn",
    "MarkedField",
    "MarkedLabel",
    "MarkedPart",
    "NamedType",
    "OtherCopy",
    "PartOf",
    "PlannedApply",
    "PlannedStatement",
    "RowInTheWay",
    "RowMark",
    "RowQuestion",
    "ScnRange",
    "ShapedPartition",
    "Snapshot",
    "SourceDatabase",
    "SourceTable",
    "SqlResult",
    "StreamOptions",
    "TableShape",
    "TakenErrors",
    "TruncatedTable",
    "Write",
    "WriteTimes",
    "are_comparable",
]
