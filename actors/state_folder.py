"""A state folder: where a site keeps what, and whose it is.

Redo, row values in logs and the address of the cluster are its owner's alone. Every process of Headrace has the umask
077, commands (`headrace.cli.entry`) and components (`keep_private`) alike, and their children inherit it: what they
write is their user's. So no place that writes a file has to name a mode, and none can forget it. Folders of earlier
versions are closed by `make_private`.

Where root starts embedded servers, these run as a spare user, who must get through the folders above the data: such
folders are 0711 then. That user can enter them, but neither list nor write.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["check_owned", "keep_private", "make_folder", "make_private", "not_owned", "site_folder"]

UMASK = 0o077
_DATABASE = "database"  # below a site's folder: an embedded server's own


def keep_private() -> None:
    """Let what this process and its children write from now on be their user's alone."""
    os.umask(UMASK)


def make_folder(folder: Path) -> None:
    """Make a folder on the way to embedded servers, and those above it; idempotent. What is there stays as it is.

    Args:
        folder: a state folder, or one above it; absolute.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
            each.chmod(_way())  # the umask takes away what a server's user needs


def _way() -> int:
    return 0o711 if os.geteuid() == 0 else 0o700


def make_private(state_dir: Path) -> None:
    """Make a state folder, and take from others what an earlier version gave them; idempotent.

    Data of embedded servers are their user's anyway.

    Args:
        state_dir: of a topology.
    """
    # Other processes do the same, and remove files, at this moment.
    way, sites = _way(), state_dir / "sites"
    make_folder(state_dir)
    _limit(state_dir, way)
    for each in _below(state_dir):
        _limit(each, way if each == sites else 0o700)
    for site in _below(sites):
        _limit(site, way)
        for each in _below(site):
            _limit(each, way if each.name == _DATABASE else 0o700)


def _below(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _limit(path: Path, mode: int) -> None:
    """Give others of a folder what a mode says, and of a file nothing; what its owner may do with it stays.

    Links, and what another process has just removed, stay as they are.
    """
    try:
        facts = path.lstat()
        if stat.S_ISLNK(facts.st_mode) or facts.st_uid != os.geteuid():
            return
        is_folder = stat.S_ISDIR(facts.st_mode)
        wanted = (facts.st_mode & 0o700) | (mode & 0o077 if is_folder else 0)
        if stat.S_IMODE(facts.st_mode) != wanted:
            path.chmod(wanted)
    except FileNotFoundError:
        pass


def not_owned(state_dir: Path) -> tuple[str, str] | None:
    """Why a state folder may be another user's, and what to do about it.

    None: nobody else made it, can write it or can put another one in its place.

    Args:
        state_dir: absolute; it need not be there.
    """
    own, is_shared = os.geteuid(), False
    for folder in (*reversed(state_dir.parents), state_dir):
        try:
            facts = folder.lstat()
            if stat.S_ISLNK(facts.st_mode) and facts.st_uid in {0, own}:
                facts = folder.stat()
        except PermissionError:
            return (
                f"user {own} may not look into {folder.parent}, which belongs to user {folder.parent.stat().st_uid}",
                _AS_OWNER,
            )
        except OSError:
            return None  # it is made there, by us
        if stat.S_ISLNK(facts.st_mode):
            return f"{folder} is a link that user {facts.st_uid} made", _ELSEWHERE
        # Root works in folders of others; but in one such as /tmp, whoever is first has made the folder for whoever
        # comes later.
        is_others = facts.st_uid not in {0, own} and (own != 0 or is_shared or folder == state_dir)
        if is_others or (folder == state_dir and facts.st_uid != own):
            return f"{folder} belongs to user {facts.st_uid}, and this is user {own}", _AS_OWNER
        may_write = stat.S_IMODE(facts.st_mode) & (0o022 if folder == state_dir else 0o002)
        if may_write and (folder == state_dir or not facts.st_mode & stat.S_ISVTX):
            return (
                f"other users may write {folder} (mode {stat.S_IMODE(facts.st_mode):04o})",
                f"chmod go-w {shlex.quote(str(folder))}, once you have seen that what is in it is yours",
            )
        is_shared = is_shared or bool(may_write)
    return None


_ELSEWHERE = "else name a state_dir in a folder that others cannot write"
_AS_OWNER = f"run it as that user, if it is the topology's; {_ELSEWHERE}"


def check_owned(state_dir: Path) -> None:
    """Refuse a state folder that may be another user's.

    Args:
        state_dir: absolute.

    Raises:
        ConfigError: another user made it, may write it, or may put another one in its place.
    """
    found = not_owned(state_dir)
    if found is not None:
        raise ConfigError(
            f"state_dir: {found[0]}: who can change what is in it decides what Headrace does, and where it sends"
            " connection strings",
            hint=found[1],
        )


def site_folder(spec: TopologySpec, site: str) -> Path:
    """The folder with everything that a site keeps on disk.

    Args:
        spec: the topology, whose state folder has it.
        site: name of the site.
    """
    return spec.state_dir / "sites" / site
