"""`tls:` of the file and of its sites: the sites' certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.databases.ports import Finding
from topology.file.shape.findings import read_shape
from topology.file.shape.models import TlsModel
from topology.links import both_ways, with_made_certificates
from topology.spec import TlsSpec, TopologySpec

if TYPE_CHECKING:
    from topology.file.document import Document

__all__ = ["TlsReading"]

_NONE = "none"
_OPEN = "anyone who reaches a component's port can read and forge changes, and cause others to be lost"


class TlsReading:
    """The file's `tls` settings; problems go to the document's findings.

    Args:
        document: the file.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        said = document.content.get("tls")
        self._is_said, self._is_none = said is not None, said == _NONE
        self._of_all: TlsModel | None = None
        if isinstance(said, dict):
            self._of_all = read_shape(TlsModel, said, ("tls",), document)
        elif self._is_said and not self._is_none:
            self._report(
                ("tls",),
                f"{said!r} is no certificate",
                "leave it out, name files as examples/tls.yaml does, or write none",
            )

    def of(self, site: str, own: TlsModel | None, folder: Path) -> TlsSpec | None:
        """Return a site's certificate files: its own, else the file's; `{site}` in a path stands for the site's name.

        None: the file names none.

        Args:
            site: name of the site.
            own: the site's own settings.
            folder: of the file; paths are relative to it.
        """
        if own is None and self._of_all is None:
            return None
        self._is_said = True
        named: dict[str, Path] = {}
        for key in ("authority", "certificate", "key", "revoked"):
            path = (own and getattr(own, key)) or (self._of_all and getattr(self._of_all, key))
            if path:
                named[key] = (folder / Path(path.replace("{site}", site)).expanduser()).resolve()
            elif key != "revoked":
                place = ("sites", site, "tls") if own is not None else ("tls",)
                self._report((*place, key), "is missing", f"add it here, or for every site under tls.{key}")
        return TlsSpec(**named) if {"authority", "certificate", "key"} <= named.keys() else None

    def completed(self, spec: TopologySpec) -> tuple[TopologySpec, frozenset[Finding]]:
        """Add the certificates that Headrace makes to a topology whose file names none.

        Args:
            spec: with every site of the file.

        Returns:
            The topology, and the findings that keep it from starting.
        """
        on_nodes = [site.name for site in spec.sites if site.node]
        if self._is_none and not any(site.tls for site in spec.sites):
            fix = (
                both_ways(spec)
                if on_nodes
                else "leave tls out: `up` makes certificates in the state folder, and renews them"
            )
            self._report(("tls",), f"none: {_OPEN}", fix, is_error=False)
        if self._is_said:
            return spec, frozenset()
        if not on_nodes:
            return with_made_certificates(spec), frozenset()
        verb = "has a node" if len(on_nodes) == 1 else "have nodes"
        problem = (
            f"is missing, and {', '.join(on_nodes)} {verb}: `up` makes certificates for one machine only, and"
            f" without them {_OPEN}"
        )
        return spec, frozenset({self._report(("tls",), problem, both_ways(spec))})

    def _report(self, path: tuple[str, ...], problem: str, fix: str, *, is_error: bool = True) -> Finding:
        finding = Finding(path=self._document.locate(path), problem=problem, fix=fix, is_error=is_error)
        self._document.findings.append(finding)
        return finding
