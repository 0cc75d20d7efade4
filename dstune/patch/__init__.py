"""Users' files: read with their bytes kept, diffed, replaced all together or not at all, and given back byte for byte.

The only module that changes a user's file. Backups lie in `$XDG_STATE_HOME/dstune/backups/<id>/` (default `~/.local/state`): a
`manifest.json` and the old bytes of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstune import __version__
from dstune.errors import DstuneError, Exit, unwinding
from dstune.lang import say
from dstune.patch.source import Source as Source
from dstune.patch.source import decode as decode
from dstune.patch.source import diff as diff
from dstune.patch.source import read as read


@dataclass(frozen=True, slots=True)
class Change:
    """A file and its new bytes; `data` None removes it."""

    source: Source
    data: bytes | None


@unwinding()
def replace(changes: Sequence[Change], before: Callable[[], None] | None = None) -> None:
    """Replaces all files, or none.

    New contents are written beside their targets and forced to disk first; then each is renamed over its target. Whatever fails
    (full disk, permission, a file changed meanwhile, Ctrl-C) puts the renamed ones back. `before` runs when nothing can be
    refused any more, and before the first rename. Raises `DstuneError`.
    """
    ready: list[tuple[Change, str, str]] = []
    done: list[tuple[Change, str, str]] = []
    try:
        for change in changes:
            _check(change)
            ready.append((change, *_beside(change)))
        if before is not None:
            before()
        for item in ready:
            _unchanged(item[0].source)
            done.append(item)
            _swap(*item)
        for folder in {os.path.dirname(c.source.real) for c in changes}:
            _sync_folder(folder)
    except BaseException as error:
        for item in reversed(done):
            _back(*item)
        if isinstance(error, OSError):
            raise DstuneError(
                say("nothing was written", "没有写入任何内容"),
                f"{error.filename or ''}: {error.strerror or error}".lstrip(": "),
                say("check free space and permissions", "检查剩余空间和权限"), Exit.UNOBSERVABLE,
            ) from error  # fmt: skip
        raise
    finally:
        for _, temporary, aside in ready:
            for name in filter(None, (temporary, aside)):
                with contextlib.suppress(OSError):
                    os.unlink(name)


def _check(change: Change) -> None:
    """Refuses what rename could replace against the owner's will."""
    source = change.source
    folder = os.path.dirname(source.real)
    if source.data is not None:
        _unchanged(source)
        if not os.access(source.real, os.W_OK) or not os.stat(source.real).st_mode & 0o222:
            raise _refused(source.path, say("it is read-only", "它是只读的"), f"chmod u+w {source.path}")
    if not os.access(folder, os.W_OK):
        raise _refused(source.path, say(f"no files can be made in {folder}", f"无法在 {folder} 中创建文件"), f"ls -ld {folder}")


def _refused(path: str, why: str, next_: str) -> DstuneError:
    return DstuneError(
        say(f"{path} is not changed, and nothing else either", f"未修改 {path}，其他文件也未修改"),
        why,
        next_,
        Exit.UNOBSERVABLE,
    )


def _unchanged(source: Source) -> None:
    try:
        with open(source.real, "rb") as f:
            now: bytes | None = f.read()
    except FileNotFoundError:
        now = None
    if now != source.data:
        raise _refused(
            source.path,
            say("it changed since it was read", "读取之后它已被修改"),
            say("run the command again", "请重新运行命令"),
        )


def _beside(change: Change) -> tuple[str, str]:
    """(temporary file with the new bytes, second name of the old file), both beside the target; "" where not needed."""
    source = change.source
    folder = os.path.dirname(source.real)
    temporary = aside = ""
    try:
        if change.data is not None:
            handle, temporary = tempfile.mkstemp(prefix=".dstune-", dir=folder)
            with os.fdopen(handle, "wb") as f:
                f.write(change.data)
                f.flush()
                os.fsync(f.fileno())
            if source.data is not None:
                _same_owner(source, temporary)
            else:
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(temporary, 0o666 & ~mask)
        if source.data is not None:
            aside = tempfile.mktemp(prefix=".dstune-", dir=folder)
            try:
                os.link(source.real, aside)
            except OSError:
                shutil.copy2(source.real, aside)  # a file system without hard links
    except BaseException:
        for name in filter(None, (temporary, aside)):
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    return temporary, aside


def _same_owner(source: Source, temporary: str) -> None:
    """Mode, owner and extended attributes of the old file for the new one."""
    info, mine = os.stat(source.real), os.stat(temporary)
    if (info.st_uid, info.st_gid) != (mine.st_uid, mine.st_gid):
        try:
            os.chown(temporary, info.st_uid, info.st_gid)
        except PermissionError:
            raise _refused(
                source.path, say("its owner could not be kept", "无法保持文件属主"), say("run as its owner", "请以文件属主运行")
            ) from None
    shutil.copystat(source.real, temporary)
    os.utime(temporary)


def _swap(change: Change, temporary: str, aside: str) -> None:
    if temporary:
        os.replace(temporary, change.source.real)
    else:
        os.unlink(change.source.real)


def _back(change: Change, temporary: str, aside: str) -> None:
    """Undoes one rename. Needs no space where hard links exist."""
    if aside:
        if os.path.exists(aside) and not (os.path.exists(change.source.real) and os.path.samefile(aside, change.source.real)):
            os.replace(aside, change.source.real)
    elif not os.path.exists(temporary):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(change.source.real)


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def digest(data: bytes | None) -> str:
    """SHA-256 of a file's bytes; "" for a file that is not there."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


SCHEMA = "dstune.backup/1"


def store() -> str:
    """The folder of the backups."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "dstune", "backups")


def write(changes: Sequence[Change], note: Mapping[str, Any] | None = None) -> str:
    """Replaces all files (see `replace`) with a backup first; returns the backup's id. `note` is kept in the manifest."""
    number = time.strftime("%Y%m%d-%H%M%S")
    folder = _new_folder(number)
    try:
        replace(changes, lambda: _keep(folder, changes, note or {}))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return os.path.basename(folder)


def _new_folder(name: str) -> str:
    """An empty folder of our own; readable by its owner only, as users' files may hold keys."""
    try:
        os.makedirs(store(), mode=0o700, exist_ok=True)
        for number in range(1000):
            folder = os.path.join(store(), name if number == 0 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                return folder
    except OSError as error:
        raise DstuneError(
            say("no backup can be kept, so nothing was written", "无法保存备份，因此没有写入"),
            f"{error.filename}: {error.strerror}",
            say("set XDG_STATE_HOME to a folder you may write", "将 XDG_STATE_HOME 设为可写的目录"), Exit.UNOBSERVABLE,
        ) from None  # fmt: skip
    raise DstuneError(say(f"{store()} is full of backups of this second", f"{store()} 中这一秒的备份过多"))


def _keep(folder: str, changes: Sequence[Change], note: Mapping[str, Any]) -> None:
    files = []
    for number, change in enumerate(changes):
        source = change.source
        if source.data is not None:
            _put(os.path.join(folder, f"{number}.old"), source.data)
        files.append({"path": source.real, "named": source.path, "before": digest(source.data), "after": digest(change.data)})
    at = time.strftime("%Y-%m-%d %H:%M:%S")
    manifest = {
        "schema": SCHEMA,
        "id": os.path.basename(folder),
        "at": at,
        "dstune": __version__,
        "undone": "",
        **note,
        "files": files,
    }
    _put(os.path.join(folder, "manifest.json"), json.dumps(manifest, ensure_ascii=False, indent=1).encode())
    _sync_folder(folder)


def _put(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def backups() -> list[dict[str, Any]]:
    """All manifests, the newest first."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(store()):
            with (
                contextlib.suppress(OSError, ValueError),
                open(os.path.join(store(), name, "manifest.json"), encoding="utf-8") as f,
            ):
                manifest = json.load(f)
                if manifest.get("schema") == SCHEMA:
                    found.append({**manifest, "id": name})
    return sorted(found, key=lambda m: (m["at"], len(m["id"]), m["id"]), reverse=True)


def undo(number: str = "", force: bool = False) -> dict[str, Any]:
    """Gives the files of a backup (the last one that stands) their old bytes; returns its manifest.

    Refuses when a file is not as the fix left it; `force` restores all the same and keeps the edited text beside the backup.
    """
    manifest = _chosen(number)
    folder = os.path.join(store(), manifest["id"])
    changes = []
    for place, entry in enumerate(manifest["files"]):
        source = read(entry["path"]) if os.path.lexists(entry["path"]) else Source(entry["path"], entry["path"], None, "")
        if digest(source.data) == entry["before"]:
            continue
        if digest(source.data) != entry["after"] and not force:
            name, again = entry["named"], f"dstune undo {manifest['id']} --force"
            raise DstuneError(
                say(f"{name} was changed after the fix, so nothing was undone", f"{name} 在修复之后又被修改，因此没有撤销"), "",
                say(f"{again} restores it and keeps your edit beside the backup", f"{again} 可强制恢复（你的修改会另存于备份旁）"), Exit.FINDINGS,
            )  # fmt: skip
        if digest(source.data) != entry["after"] and source.data is not None:
            _put(os.path.join(folder, f"{place}.edited"), source.data)
        changes.append(Change(source, _old(folder, place, entry)))
    replace(changes)
    manifest["undone"] = time.strftime("%Y-%m-%d %H:%M:%S")
    _put(os.path.join(folder, "manifest.new"), json.dumps(manifest, ensure_ascii=False, indent=1).encode())
    os.replace(os.path.join(folder, "manifest.new"), os.path.join(folder, "manifest.json"))
    return manifest


def _chosen(number: str) -> dict[str, Any]:
    known = backups()
    found = next((m for m in known if (m["id"] == number if number else not m["undone"])), None)
    if found is None:
        what = (
            say(f"no backup is called {number}", f"没有名为 {number} 的备份")
            if number
            else say("there is nothing to undo", "没有可撤销的修改")
        )
        raise DstuneError(what, "", "dstune undo --list" if number else "dstune fix FILE --write")
    if found["undone"]:
        raise DstuneError(say(f"{number} was undone already", f"{number} 已经撤销过"), found["undone"], "dstune undo --list")
    return found


def _old(folder: str, place: int, entry: Mapping[str, Any]) -> bytes | None:
    if not entry["before"]:
        return None
    try:
        with open(os.path.join(folder, f"{place}.old"), "rb") as f:
            data = f.read()
    except OSError as error:
        raise DstuneError(
            say("the backup is incomplete", "备份不完整"), f"{error.filename}: {error.strerror}", "", Exit.UNOBSERVABLE
        ) from None
    if digest(data) != entry["before"]:
        raise DstuneError(say("the backup is damaged", "备份已损坏"), f"{place}.old", "", Exit.UNOBSERVABLE)
    return data
