"""`dstune fix --verify`: the file as it is against its patched copy, both started and asked the same. The copy lies in a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dstune.cli.verify_sides import Side
from dstune.errors import DstuneError, Exit
from dstune.lang import say
from dstune.load.launch import Program, Workspace, interpreter
from dstune.model import Report
from dstune.model.plan import Artifact
from dstune.patch import Source


def proved(
    made: Sequence[Artifact], sources: Sequence[Source], kinds: Mapping[str, str], python: str, words: str
) -> tuple[Report, dict[str, Any]]:
    """The verdict on the fixes. `words` are further options of `dstune verify`. Raises `DstuneError` where nothing of it can be started."""
    from dstune.cli.verify import bench_of, command, verified

    options = command.make_context("verify", _split(words), resilient_parsing=False).params
    if options["sides"] or options["before_cmd"] or options["after_cmd"]:
        raise DstuneError(
            say("--verify-options takes options only", "--verify-options 只接受选项"),
            "",
            '--verify-options "-c 2 --max-tokens 32"',
        )
    bench = bench_of(options)
    by_path = {s.path: s for s in sources}
    first = _started([*(by_path[a.path] for a in made), *sources], kinds)
    folder, name = os.path.split(first.real)
    texts = {by_path[a.path].real: by_path[a.path].encoded(a.text) for a in made}
    inside = {path: data for path, data in texts.items() if os.path.commonpath([path, folder]) == folder}
    if not inside:
        raise DstuneError(
            say(f"nothing that {first.path} runs with is changed", f"{first.path} 运行所用的文件没有改动"),
            "",
            "dstune verify BEFORE AFTER",
        )
    program = (interpreter(folder, python),) if name.endswith(".py") else ("bash",)
    with Workspace() as room:
        copy = os.path.join(room.folder, "fixed")
        shadow(folder, copy, inside)
        before = Side("before", first.path, Program((*program, name), folder))
        after = Side("after", say(f"{first.path}, fixed", f"{first.path}（修复后）"), Program((*program, name), copy))
        report, data = verified(before, after, bench, options["start_timeout"])
    data["not_run"] = sorted(a.path for a in made if by_path[a.path].real not in inside)
    return report, data


def _split(words: str) -> list[str]:
    import shlex

    try:
        return shlex.split(words)
    except ValueError as error:
        raise DstuneError(f"--verify-options: {error}", "", '--verify-options "-c 2"') from None


def _started(sources: Sequence[Source], kinds: Mapping[str, str]) -> Source:
    """The file that is started: a program that is changed before a script, before files that are not changed."""
    for source in sources:
        if kinds.get(source.path) == "app" and source.real.endswith(".py"):
            return source
    for source in sources:
        if kinds.get(source.path) == "command":
            return source
    raise DstuneError(
        say("none of these files can be started", "这些文件都无法启动"),
        say("--verify runs app.py or a launch script", "--verify 运行 app.py 或启动脚本"),
        say("start both yourself: dstune verify URL URL", "自行启动两者：dstune verify URL URL"),
        Exit.USAGE,
    )


def shadow(folder: str, copy: str, changed: Mapping[str, bytes]) -> None:
    """A copy of `folder` at `copy` in which `changed` files (by their real path) have new bytes and all else is a link to the original."""
    os.makedirs(copy)
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        real = os.path.realpath(path)
        if real in changed:
            target = os.path.join(copy, entry)
            with open(target, "wb") as f:
                f.write(changed[real])
            os.chmod(target, os.stat(real).st_mode & 0o777 | 0o200)
        elif os.path.isdir(path) and not os.path.islink(path) and any(c.startswith(path + os.sep) for c in changed):
            shadow(path, os.path.join(copy, entry), changed)
        else:
            os.symlink(path, os.path.join(copy, entry))
