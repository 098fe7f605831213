"""Checks of transformations, from the file alone and from the existing tables.

From the file
    Every table has one transformation at a client: overlapping rules must transform alike.
    Before an apply process, a rule that renames must name its tables itself, not in a condition.
    Columns of a subset arrive unchanged: at the destination a TRUNCATE deletes the subset's rows, and `headrace verify`
    compares them. Conditions after a transformation may only use columns that come from the source.
From the tables
    A transformation that cannot be applied, missing columns that it names, and two tables that arrive as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.base.errors import UnfitTableError
from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName
from headrace.rules.conditions.nodes import Attribute, operands_of
from headrace.rules.rule import UNKNOWN_TAG, Rule, RuleSet, TruthValue
from headrace.rules.transformations.transformation import Transformation, TransformationError
from topology.routing.change_classes import ChangeClasses
from topology.routing.ways import Way, arriving, ways_to
from topology.spec import ApplySpec, TopologySpec

if TYPE_CHECKING:
    from headrace.databases.ports import CapturedTable
    from headrace.lcr.batch import TableVersion

__all__ = [
    "arrival_findings",
    "lost_columns",
    "overlap_findings",
    "transformation_findings",
    "refuse_one_name",
    "ways_before",
]


def overlap_findings(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Yield rules of one client that transform the same table differently, and renames where names must not change.

    Args:
        spec: every name in it has a target.
        classes: of `spec`.
    """
    for kind, clients in (("captures", spec.captures), ("propagations", spec.propagations), ("applies", spec.applies)):
        for client in clients:
            if client.rules.transforms:
                yield from _overlaps(f"{kind}.{client.name}", client.rules, classes)
            for number, rule in enumerate(client.rules.include or ()):
                if kind != "applies" and _is_named_by_condition(rule):
                    yield Finding(
                        path=f"{kind}.{client.name}.rules.include[{number}].transform",
                        problem="renames the tables that a condition names (object_owner or object_name): the proof"
                        " cannot tell which tables they are, and later clients see other names",
                        fix="name the schema or table in the rule itself, with table or schema; or rename at the apply"
                        " process",
                    )


def _is_named_by_condition(rule: Rule) -> bool:
    """Return whether a rule renames the tables that its condition selects by name."""
    if rule.condition is None or rule.transformation is None or not rule.transformation.renames:
        return False
    return any(
        isinstance(each, Attribute) and each.name in {"object_owner", "object_name"}
        for each in operands_of(rule.condition.tree)
    )


def _overlaps(path: str, rules: RuleSet, classes: ChangeClasses) -> Iterator[Finding]:
    seen: set[tuple[int, int]] = set()
    include = list(rules.include or ())
    for owner, name in classes.tables:
        first, *others = rules.takers(owner, name) or (None,)
        for other in others:
            assert first is not None
            pair = include.index(first), include.index(other)
            if first.transformation != other.transformation and pair not in seen:
                seen.add(pair)
                yield Finding(
                    path=f"{path}.rules.include[{pair[1]}].transform"
                    if other.transformation
                    else f"{path}.rules.include[{pair[1]}]",
                    problem=f"include[{pair[0]}] ({_text(first)}) and include[{pair[1]}] ({_text(other)}) both take"
                    f" {owner}.{name}, and transform it differently: which of them applies is undefined",
                    fix="let one rule alone take the table, or give both the same transform",
                )


def _text(rule: Rule) -> str:
    return f"{rule}: {rule.transformation or 'as it is'}"


def transformation_findings(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Yield the harm that a transformation does to later clients and to other tables.

    Args:
        spec: routed, without `overlap_findings`.
        classes: of `spec`.
    """
    told: set[tuple[str, str]] = set()
    for apply in spec.applies:
        for way in ways_to(spec, apply):
            if not any(client.rules.transforms for client in way.clients):
                continue
            for found in _columns(way, classes):
                if (found.path, found.problem) not in told:
                    told.add((found.path, found.problem))
                    yield found
    yield from _same_name(spec, classes)


def _columns(way: Way, classes: ChangeClasses) -> Iterator[Finding]:
    """Yield conditions and subsets whose columns differ from the source's there, or are changed later."""
    kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
    for table in classes.tables:
        passages = tuple(way.passages(TableName(*table)))
        for place, (kind, client, passage) in enumerate(zip(kinds, way.clients, passages, strict=True)):
            passed, later = (
                [each.transformation for each in part if each.transformation is not None]
                for part in (passages[:place], passages[place:])
            )
            rules = (("include", client.rules.include or ()), ("exclude", client.rules.exclude))
            for section, number, rule in (
                (section, number, rule) for section, found in rules for number, rule in enumerate(found)
            ):
                if rule.looks_at_rows and rule.answer(*passage.table, UNKNOWN_TAG) is not TruthValue.FALSE:
                    path = f"{kind}.{client.name}.rules.{section}[{number}]"
                    yield from _rule_columns(path, rule, passed, later)
            if not client.rules.keeps(*passage.table):
                break  # the table does not reach later clients; another one may have its name there


def _rule_columns(
    path: str, rule: Rule, passed: Sequence[Transformation], later: Sequence[Transformation]
) -> Iterator[Finding]:
    for condition in rule.conditions:
        for column in dict.fromkeys(value.column for value in condition.columns):
            name: str | None = column
            for each in reversed(passed):
                name = None if name is None else each.origin(name)
            if name is None:
                yield Finding(
                    path=path,
                    problem=f"names {column}, which is not a column of the source at this client: an earlier"
                    " transformation adds or removes it",
                    fix="put the condition where the column still exists: at the client that transforms it or before",
                )
            elif condition is rule.subset and (
                name != column or not all(each.leaves_alone(column) for each in (*passed, *later))
            ):
                yield Finding(
                    path=f"{path}.subset",
                    problem=f"names {column}, which a transformation on the way renames, removes or may change: the"
                    " subset's rows at the destination could not be deleted by a TRUNCATE, or compared",
                    fix="let the columns of a subset arrive under their own names and with their values; say which"
                    " other columns a function changes: {function: ..., columns: [...]}",
                )


def _same_name(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Yield two tables of a source that arrive at a site as one, through one apply process or two."""
    groups: dict[tuple[str, str], list[ApplySpec]] = {}
    for apply in spec.applies:
        groups.setdefault((apply.site, apply.source), []).append(apply)
    for (site, source), applies in groups.items():
        ways = [way for apply in applies for way in ways_to(spec, apply)]
        if not any(client.rules.renames for way in ways for client in way.clients):
            continue
        first: dict[TableName, tuple[TableName, ApplySpec]] = {}
        for way in ways:
            for table in classes.spoken_of:
                arrives = way.carry(table)
                if arrives is None:
                    continue
                # The proof finds one table that arrives twice (`topology.proof.duplicates`).
                other, by = first.setdefault(arrives, (table, way.apply))
                if other != table:
                    apart = (
                        "" if by is way.apply else f": the first through {by.name}, the second through {way.apply.name}"
                    )
                    yield Finding(
                        path=f"applies.{way.apply.name}",
                        problem=f"{other} and {table} of {source} would both arrive at {site} as {arrives}{apart}",
                        fix="give each its own name, or exclude one of them",
                    )


def ways_before(spec: TopologySpec, apply: ApplySpec) -> tuple[Way, ...]:
    """Return the ways from the same source to the same site that end in apply processes listed earlier in the file.

    Args:
        spec: routed.
        apply: of `spec`.
    """
    before = spec.applies[: [each.name for each in spec.applies].index(apply.name)]
    return tuple(
        way for each in before if (each.site, each.source) == (apply.site, apply.source) for way in ways_to(spec, each)
    )


def arrival_findings(
    apply: ApplySpec,
    ways: Sequence[Way],
    versions: Sequence[TableVersion],
    before: Sequence[Way] = (),
) -> tuple[tuple[Finding, ...], tuple[TableVersion, ...]]:
    """Check the transformations of the existing tables.

    Args:
        apply: where they arrive.
        ways: the ways to `apply`.
        versions: of the source's tables, captured or not.
        before: `ways_before`: tables that arrive over them occupy their names there.

    Returns:
        Findings, and the versions that can be transformed.
    """
    findings: list[Finding] = []
    fitting: list[TableVersion] = []
    first: dict[TableName, TableVersion] = {}
    for version in versions:
        for way in before:
            if (name := way.carry(TableName.of(version))) is not None:
                first.setdefault(name, version)
    for version in versions:
        path = f"sites.{apply.source} table {version.qualified_name}"
        try:
            arrives = next((each for way in ways if (each := way.carry(version)) is not None), None)
        except TransformationError as error:
            findings.append(Finding(path=path, problem=f"{error.message} (on the way to {apply.name})", fix=error.hint))
            continue
        fitting.append(version)
        if arrives is None:
            continue
        if (other := first.setdefault(TableName.of(arrives), version)) is not version:
            findings.append(
                Finding(
                    path=path,
                    problem=f"would arrive at {apply.site} as {arrives.qualified_name}, as {other.qualified_name} does",
                    fix="give each its own name, or exclude one of them by a rule",
                )
            )
        for way in ways:
            findings += _unmet(path, way, version)
        findings += _unknown_binds(apply, arrives)
    return tuple(findings), tuple(fitting)


def _unknown_binds(apply: ApplySpec, arrives: TableVersion) -> Iterator[Finding]:
    """Yield columns that a table's handlers use and that its LCRs lack: they would silently be NULL."""
    known = {column.name for column in arrives.columns}
    for entry, handler in apply.handlers.of_rows():
        if (handler.owner, handler.name) != TableName.of(arrives):
            continue
        for column in dict.fromkeys((*handler.columns, *(column for _, column in handler.binds))):
            if column not in known:
                yield Finding(
                    path=f"applies.{apply.name}.{entry}",
                    problem=f"{arrives.qualified_name} arrives without a column {column}",
                    fix=f"its LCRs have {', '.join(sorted(known))}; names are as the source and the transformations"
                    " write them",
                )


def refuse_one_name(spec: TopologySpec, apply: ApplySpec, captured: Sequence[CapturedTable]) -> None:
    """Refuse two tables of a source that arrive at a site as one.

    A rename at the source can cause this while everything runs. `arrival_findings` reports it for an edit. Neither
    table may then be applied or removed, because their rows cannot be told apart.

    Args:
        spec: routed.
        apply: of `spec`.
        captured: the tables of its source under their present names.

    Raises:
        UnfitTableError: two arrive under one name, through one apply process or two.
    """
    first: dict[TableName, CapturedTable] = {}
    for other in (each for each in spec.applies if (each.site, each.source) == (apply.site, apply.source)):
        for table in arriving(ways_to(spec, other), captured):
            holder = first.setdefault(TableName.of(table.destination), table.source)
            if holder.identity != table.source.identity:
                both, name = f"{TableName.of(holder)} and {TableName.of(table.source)}", TableName.of(table.destination)
                raise UnfitTableError(
                    f"{both} of {apply.source} both arrive at {apply.site} as {name} since one of them was renamed:"
                    " their rows would be mixed up",
                    hint=f"give one of them another name at {apply.source}, or another rename_table in the file and run"
                    f" `headrace up`; leave {name} at {apply.site} as it is. Apply resumes when the names differ",
                    table=str(name),
                )


def lost_columns(spec: TopologySpec, source: str, versions: Callable[[], Sequence[TableVersion]]) -> tuple[str, ...]:
    """Return columns that transformations name and that their tables no longer have.

    They were renamed or dropped while everything ran. `arrival_findings` refuses such a file beforehand. Later, a
    column to keep would be omitted under its new name, and a column to omit or mask would be sent under it.

    Args:
        spec: routed.
        source: name of a source's site.
        versions: returns its captured tables as they are now; not called where no transformation names a column of one
            table.
    """
    ways = [way for apply in spec.applies if apply.source == source for way in ways_to(spec, apply)]
    rules = (rule for way in ways for client in way.clients for rule in client.rules.include or ())
    if not any(
        each is not None and (each.reshapes or each.custom is not None)
        for each in (rule.transformation for rule in rules)
    ):
        return ()
    found: dict[str, None] = {}
    known = versions()
    for way in ways:
        for version in known:
            with suppress(TransformationError):  # the client stops at its next LCR, and says why
                if way.carry(version) is not None:
                    found |= {
                        f"{column} of {version.qualified_name} ({client})": None
                        for client, column in _unmet_columns(way, version)
                    }
    return tuple(found)


def _unmet(path: str, way: Way, version: TableVersion) -> Iterator[Finding]:
    """Yield columns that a rule for exactly this table names, and that the table lacks.

    They are probably misspelt, and then columns are sent that should not be.
    """
    for client, column in _unmet_columns(way, version):
        yield Finding(
            path=path,
            problem=f"has no column {column}, which the transformation of {client} names",
            fix="correct the name, or take it out",
        )


def _unmet_columns(way: Way, version: TableVersion) -> Iterator[tuple[str, str]]:
    """Yield each such column, after the name of its client."""
    names: list[str] = [column.name for column in version.columns]
    for client, (table, transformation, _) in zip(way.clients, way.passages(version), strict=True):
        if transformation is None:
            continue
        is_named = any((rule.owner, rule.name) == table for rule in client.rules.takers(*table))
        yield from ((client.name, column) for column in (transformation.unmet(names) if is_named else ()))
        names = list(transformation.shape(names, table=version.qualified_name).names)
