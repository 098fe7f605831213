"""A state folder: its layout, its permissions and its owner.

Redo, row values in logs and the address of the cluster are private to the owner. Every process of Headrace has the umask
077, commands (`headrace.cli.entry`) and components (`keep_private`) alike, and their children inherit it: their files
are private to their user. So no code that writes a file has to set a mode, and none can forget it. `make_private`
closes folders of earlier versions.

Embedded servers that root starts run as a spare user, who must be able to traverse the folders above the data. Such
folders have mode 0711: that user can enter them, but neither list nor write.
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
_DATABASE = "database"  # below a site's folder; belongs to an embedded server


def keep_private() -> None:
    """Make everything that this process and its children write from now on private to their user."""
    os.umask(UMASK)


def make_folder(folder: Path) -> None:
    """Create a folder on the path to embedded servers, with its parents; idempotent. Existing folders stay unchanged.

    Args:
        folder: a state folder, or one above it; absolute.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
            each.chmod(_way())  # the umask removes the rights that a server's user needs


def _way() -> int:
    return 0o711 if os.geteuid() == 0 else 0o700


def make_private(state_dir: Path) -> None:
    """Create a state folder, and revoke rights that an earlier version gave to others; idempotent.

    Data of embedded servers belong to the servers' user anyway.
    """
    # Other processes may do the same, and remove files, at the same time.
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
    """Limit others' rights on a folder to those of a mode, and on a file to none; the owner's rights stay.

    Links stay unchanged; a path that another process has just removed is ignored.
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


def not_owned(state_dir: Path, *, what: str = "state_dir", may_be_roots: bool = False) -> tuple[str, str] | None:
    """Return why a state folder, or a file, may be another user's, and what to do about it.

    None: no other user made it, can write it or can replace it.

    Args:
        state_dir: absolute path; it may be missing.
        what: its name in the topology file.
        may_be_roots: whether root may have made it for this user.
    """
    elsewhere = f"else name a {what} in a folder that others cannot write"
    as_owner = f"run it as that user, if it is the topology's; {elsewhere}"
    own, is_shared = os.geteuid(), False
    for folder in (*reversed(state_dir.parents), state_dir):
        try:
            facts = folder.lstat()
            if stat.S_ISLNK(facts.st_mode) and facts.st_uid in {0, own}:
                facts = folder.stat()
        except PermissionError:
            return (
                f"user {own} may not look into {folder.parent}, which belongs to user {folder.parent.stat().st_uid}",
                as_owner,
            )
        except OSError:
            return None  # this process creates it
        if stat.S_ISLNK(facts.st_mode):
            return f"{folder} is a link that user {facts.st_uid} made", elsewhere
        # Root works in folders of others. But in a shared folder such as /tmp, any user may have created the folder
        # first.
        is_others = facts.st_uid not in {0, own} and (own != 0 or is_shared or folder == state_dir)
        is_ours = facts.st_uid == own or (may_be_roots and facts.st_uid == 0)
        if is_others or (folder == state_dir and not is_ours):
            return f"{folder} belongs to user {facts.st_uid}, and this is user {own}", as_owner
        may_write = stat.S_IMODE(facts.st_mode) & (0o022 if folder == state_dir else 0o002)
        if may_write and (folder == state_dir or not facts.st_mode & stat.S_ISVTX):
            return (
                f"other users may write {folder} (mode {stat.S_IMODE(facts.st_mode):04o})",
                f"chmod go-w {shlex.quote(str(folder))}, after checking that its contents are yours",
            )
        is_shared = is_shared or bool(may_write)
    return None


def check_owned(state_dir: Path) -> None:
    """Refuse a state folder that may be another user's.

    Args:
        state_dir: absolute path.

    Raises:
        ConfigError: another user made it, may write it, or may replace it.
    """
    found = not_owned(state_dir)
    if found is not None:
        raise ConfigError(
            f"state_dir: {found[0]}: a user who can change its contents decides what Headrace does, and where it sends"
            " connection strings",
            hint=found[1],
        )


def site_folder(spec: TopologySpec, site: str) -> Path:
    """Return the folder with everything that a site keeps on disk.

    Args:
        spec: the topology with the state folder.
        site: name of the site.
    """
    return spec.state_dir / "sites" / site
