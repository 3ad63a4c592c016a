"""Folders on network file systems, and errors that mean that such a folder is unreachable."""

import errno
from pathlib import Path

_MOUNTS = Path("/proc/mounts")
_NETWORK = {
    *("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "pvfs2", "orangefs", "panfs"),
    *("cifs", "smb3", "smbfs", "afs", "9p"),
}
_UNREACHABLE = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EREMOTEIO,
)


def is_network_folder(folder: Path) -> bool:
    """Whether a folder is on a network file system; False if that is unknown."""
    try:
        mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    except OSError:  # not Linux
        return False
    real, found = folder.resolve(), ("/", "")
    for _, point, kind, *_ in mounts:
        point = point.replace("\\040", " ")
        # Of several mounts at one point, the last one is visible.
        if real.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, kind
    kind = found[1]
    return kind in _NETWORK or (kind.startswith("fuse.") and kind != "fuse.fuse-overlayfs")


def is_unreachable(folder: Path, error: OSError) -> bool:
    """Whether an error may pass, because the folder is on a server that is unreachable now."""
    return error.errno in _UNREACHABLE and is_network_folder(folder)
