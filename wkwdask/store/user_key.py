"""Secret key of the user. A signature proves that this user wrote some data, even in a folder that
others can write to."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat

from wkwdask.errors import CorruptError, MissingError

_KEY_NBYTES = 32


def key_path() -> str:
    """Return the path of the key: in ``$XDG_STATE_HOME/wkwdask`` or ``~/.local/state/wkwdask``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return f"{state if os.path.isabs(state) else os.path.expanduser('~/.local/state')}/wkwdask/key"


def user_key(*, create: bool = False) -> bytes:
    """Read the key of this user; with ``create``, create it if it is missing."""
    path = key_path()
    if create and not os.path.lexists(path):
        _create(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise MissingError(
            f"{path}: key not found; submitting the job created it there, and all nodes must see "
            "the same file"
        ) from None
    with open(fd, "rb") as file:
        status, key = os.fstat(fd), file.read(_KEY_NBYTES + 1)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise CorruptError(
            f"{path}: expected a file that only this user can read and write (chmod 600), found "
            f"{stat.filemode(status.st_mode)}"
        )
    if len(key) != _KEY_NBYTES:
        raise CorruptError(
            f"{path}: expected a key of {_KEY_NBYTES} bytes; remove it, and the next submission "
            "creates a new one"
        )
    return key


def _create(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # Written under another name and hard-linked, so that readers never see half a key, and of two
    # processes that create one, both use the same.
    temporary = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_NBYTES))
            file.flush()
            os.fsync(fd)
        try:
            os.link(temporary, path)
        except OSError:
            # another process was faster, or a server that lost a reply has made the name
            if not os.path.lexists(path):
                raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def signature(key: bytes, what: str, data: bytes) -> str:
    """Sign data together with a name for its purpose."""
    name = what.encode(errors="surrogateescape")
    return hmac.new(key, b"%d %s%s" % (len(name), name, data), hashlib.sha256).hexdigest()


def is_signed(key: bytes, what: str, data: bytes, claimed: str) -> bool:
    """Check a signature, in a time that does not depend on its value."""
    return hmac.compare_digest(signature(key, what, data).encode(), claimed.encode())
