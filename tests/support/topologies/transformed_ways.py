"""A one-way topology with transformations at each of its three clients."""

from __future__ import annotations

from headrace.lcr.batch import Column, OldImage, TableVersion
from topology.routing.ways import ways_to
from topology.spec import TopologySpec

__all__ = ["MASK", "ONE_WAY", "RENAME", "VERSION", "one_way", "the_way"]

ONE_WAY = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures:
  cap: {site: dbs1, source: dbs1, queue: q1, rules: {include: [CAPTURED]}}
propagations:
  prop: {from: q1, to: q2, rules: {include: [SENT]}}
applies:
  app: {site: dbs2, source: dbs1, queue: q2, rules: {include: [APPLIED]}}
"""
VERSION = TableVersion(
    object_number=7,
    version=7,
    owner="hr",
    name="employees",
    old_image=OldImage.KEY,
    columns=tuple(
        Column(name=name, type_name="pg_catalog.text", is_key=name == "id") for name in ("id", "name", "salary")
    ),
)
MASK = "{table: hr.employees, transform: [{delete_columns: [salary]}]}"
RENAME = "{table: hr.employees, transform: [{rename_table: sales.staff}, {rename_column: {from: name, to: full_name}}]}"


def one_way(captured: str = "{schema: hr}", sent: str = "{schema: hr}", applied: str = "{schema: hr}") -> str:
    return ONE_WAY.replace("CAPTURED", captured).replace("SENT", sent).replace("APPLIED", applied)


def the_way(spec: TopologySpec):
    (way,) = ways_to(spec, spec.apply("app"))
    return way
