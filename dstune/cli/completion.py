"""`dstune completion SHELL`: the completion script of a shell, on stdout."""

from __future__ import annotations

import click

from dstune.cli.options import common
from dstune.lang import say


@click.command(
    help=say(
        "Print the completion script of SHELL.\n\n\b\n  dstune completion bash >> ~/.bashrc\n  dstune completion zsh >> ~/.zshrc\n  dstune completion fish > ~/.config/fish/completions/dstune.fish",
        "打印 SHELL 的补全脚本。\n\n\b\n  dstune completion bash >> ~/.bashrc\n  dstune completion zsh >> ~/.zshrc\n  dstune completion fish > ~/.config/fish/completions/dstune.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
def command(shell: str, as_json: bool) -> None:
    from click.shell_completion import get_completion_class

    from dstune.cli.options import group

    made = get_completion_class(shell)
    assert made is not None
    source = made(group(), {}, "dstune", "_DSTUNE_COMPLETE").source()
    if as_json:
        import json

        source = json.dumps({"shell": shell, "script": source})
    click.echo(source)
