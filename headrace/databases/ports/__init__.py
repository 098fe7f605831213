"""Ports: what Headrace needs of a database. Every connector passes one contract suite (`tests/contract`).

A connector has a source half (`SourceDatabase`, `LogStream`, `LogDecoder`) and a destination half
(`DestinationDatabase`, `DestinationSession`). `headrace.databases.ports.copying` reads and writes whole tables. The
destination half consists of several ports, one per task: a function's signature shows which of them it needs. Positions
are SCNs here; a connector translates its own.
"""

from __future__ import annotations

from headrace.databases.ports.conflicts import ConflictRecord, LastChange, RowInTheWay, RowQuestion, WriteTimes
from headrace.databases.ports.ddl import (
    DDL_REFUSED,
    DdlIn,
    DdlJob,
    DdlOutcome,
    DdlOutcomeKind,
    DdlPlace,
    MissedDdl,
    deleted_with,
)
from headrace.databases.ports.destination import (
    ApplyRecords,
    DestinationDatabase,
    DestinationSetUp,
    DestinationTables,
    ErrorRecords,
    InstantiationRecords,
)
from headrace.databases.ports.error_queue import ErrorEdit, ErrorTransaction, TakenErrors
from headrace.databases.ports.handler_sql import HandlerSql, SqlResult
from headrace.databases.ports.instantiations import (
    AWAITING,
    BEGUN,
    ROWS_THERE,
    ArrivalSeen,
    Carried,
    Instantiation,
    OtherCopy,
    PartOf,
)
from headrace.databases.ports.log import (
    DecodedChunk,
    DictionaryBuild,
    DictionaryTable,
    LogChunk,
    LogDecoder,
    LogStream,
    StreamOptions,
)
from headrace.databases.ports.planning import (
    UNFIT_TABLE,
    ComputedColumn,
    ComputedDifference,
    ComputedPart,
    DomainColumn,
    EnumLabels,
    Exclusion,
    ExclusionTerm,
    Finding,
    LoggedTable,
    LogNeed,
    NamedType,
    PlannedApply,
    PlannedStatement,
    ShapedPartition,
    TableShape,
)
from headrace.databases.ports.progress import ApplyProgress, LogPositions, ScnRange
from headrace.databases.ports.row_marks import MarkedColumn, MarkedField, MarkedLabel, MarkedPart, RowMark
from headrace.databases.ports.session import (
    ApplyTransaction,
    ConflictSession,
    DestinationSession,
    ErrorSession,
    HandlerSession,
    WriteSession,
)
from headrace.databases.ports.source import NEVER_CAPTURED, CapturedTable, Snapshot, SourceDatabase, SourceTable
from headrace.databases.ports.tables import (
    DestinationColumn,
    DestinationTable,
    Diversion,
    ForeignKey,
    FoundRows,
    are_comparable,
)
from headrace.databases.ports.writes import TruncatedTable, Write

__all__ = [
    "AWAITING",
    "BEGUN",
    "DDL_REFUSED",
    "NEVER_CAPTURED",
    "ROWS_THERE",
    "UNFIT_TABLE",
    "ApplyProgress",
    "ApplyRecords",
    "ApplyTransaction",
    "ArrivalSeen",
    "CapturedTable",
    "Carried",
    "ComputedColumn",
    "ComputedDifference",
    "ComputedPart",
    "ConflictRecord",
    "ConflictSession",
    "DdlIn",
    "DdlJob",
    "DdlOutcome",
    "DdlOutcomeKind",
    "DdlPlace",
    "DecodedChunk",
    "DestinationColumn",
    "DestinationDatabase",
    "DestinationSession",
    "DestinationSetUp",
    "DestinationTable",
    "DestinationTables",
    "DictionaryBuild",
    "DictionaryTable",
    "Diversion",
    "DomainColumn",
    "EnumLabels",
    "Exclusion",
    "ExclusionTerm",
    "ErrorEdit",
    "ErrorRecords",
    "ErrorSession",
    "ErrorTransaction",
    "Finding",
    "ForeignKey",
    "FoundRows",
    "HandlerSession",
    "HandlerSql",
    "Instantiation",
    "InstantiationRecords",
    "LastChange",
    "LogChunk",
    "LogDecoder",
    "LogNeed",
    "LogPositions",
    "LogStream",
    "LoggedTable",
    "MissedDdl",
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
    "WriteSession",
    "WriteTimes",
    "are_comparable",
    "deleted_with",
]
