"""Claims on a topology's databases before its private cluster starts, when nothing of it runs here yet.

The sites also claim them, but only a running site can. Without this, a second copy of a topology was refused only after
everything had started, and nothing ended it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from actors.site.connection import claim_on
from actors.state_folder import make_private
from headrace.base.errors import DatabaseError, RunsElsewhere
from headrace.databases.ports import Finding
from topology.problems import TopologyError

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["claimed"]


@contextmanager
def claimed(spec: TopologySpec) -> Iterator[None]:
    """Hold the claims on the users' databases of a topology; the sites take them over afterwards.

    A database that does not answer is skipped: its site waits for it. So is one that this same copy holds, because an
    earlier command's cluster may still be ending.

    Args:
        spec: the topology. An embedded database needs no claim.

    Raises:
        TopologyError: another copy of it runs; the error names every database that this copy holds.
    """
    found: list[Finding] = []
    with ExitStack() as stack:
        for site in spec.sites:
            if site.database.kind != "postgres":
                continue
            make_private(spec.state_dir)
            claim = stack.enter_context(closing(claim_on(spec, site)))
            try:
                claim.hold(spares_own=True)
            except RunsElsewhere as error:
                found.append(Finding(path=f"sites.{site.name}", problem=error.message, fix=error.hint))
            except DatabaseError:  # its site reports it
                continue
        if found:
            raise TopologyError.of(str(spec.file), found)
        yield
