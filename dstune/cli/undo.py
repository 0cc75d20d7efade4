"""`dstune undo`: the files as they were before a fix, byte for byte."""

from __future__ import annotations

import json

import click

from dstune import __version__, patch
from dstune.cli.options import common
from dstune.errors import Exit
from dstune.lang import say


@click.command(
    help=say("Take back the last fix, or the one with this ID, byte for byte.", "逐字节撤销上一次修复，或指定 ID 的修复。")
)
@click.argument("number", metavar="[ID]", required=False, default="")
@click.option("--list", "listed", is_flag=True, help=say("List what can be undone.", "列出可撤销的修复。"))
@click.option(
    "--force",
    is_flag=True,
    help=say(
        "Also where the file was edited after the fix; the edit is kept beside the backup.",
        "即使文件之后又被修改也恢复，你的修改另存于备份旁。",
    ),
)
@common
def command(number: str, listed: bool, force: bool, as_json: bool) -> int:
    if listed:
        found = patch.backups()
        if as_json:
            click.echo(
                json.dumps(
                    {"schema": "dstune.report/1", "command": "undo", "version": __version__, "backups": found},
                    ensure_ascii=False,
                    indent=1,
                )
            )
            return Exit.OK
        for one in found:
            state = say(f"undone {one['undone']}", f"已于 {one['undone']} 撤销") if one["undone"] else ""
            causes = ", ".join(dict.fromkeys(s["cause"] for s in one.get("steps", ())))
            click.echo(
                "  ".join(filter(None, (one["id"], one["at"], ", ".join(f["named"] for f in one["files"]), causes, state)))
            )
        if not found:
            click.echo(say("There is nothing to undo.", "没有可撤销的修复。"))
        return Exit.OK
    done = patch.undo(number, force)
    names = ", ".join(f["named"] for f in done["files"])
    if as_json:
        files = [f["path"] for f in done["files"]]
        click.echo(
            json.dumps(
                {"schema": "dstune.report/1", "command": "undo", "version": __version__, "undone": done["id"], "files": files},
                ensure_ascii=False,
                indent=1,
            )
        )
    else:
        click.echo(say(f"Restored: {names} (as before {done['id']})", f"已恢复：{names}（{done['id']} 之前的内容）"))
    return Exit.OK
