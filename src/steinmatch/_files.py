"""Files written whole or not at all."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def as_path(value: Any, place: str) -> Path:
    """`value` as a path; TypeError otherwise."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise TypeError(f"{place}: path must be the path of a file, got {value!r:.80}.")
    return Path(value)


def write_whole(path: str | Path, content: bytes | str) -> None:
    """The content beside the file, and then in its place: whatever happens, the old file or the new one. A link stays
    one, what is no plain file is refused, permissions are those of the old file or of the umask.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a plain file, and is left alone; give another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_up(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.chmod(part, stat.S_IMODE(path.stat().st_mode))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _clear_up(path: Path) -> None:
    """Parts of this file that processes left which are no more."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            part.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def cache_folder() -> Path:
    """Where what takes long to make is kept: $STEINMATCH_CACHE, or the user's cache folder."""
    given = os.environ.get("STEINMATCH_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "steinmatch"


def check_folder(folder: Path) -> None:
    """ValueError where nothing can be written into a folder, which is made where there is none."""
    probe = folder / f".steinmatch.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
        raise ValueError(f"cannot write into {folder}: {error.strerror or error}; give another --out.") from error


@contextlib.contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """ValueError where another process is at work in the folder."""
    import fcntl

    check_folder(folder)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{what}: another run is at work in {folder}; wait for it, or give another --out."
            ) from error
        yield
