"""`--list-models` and `--list-gpus` of `dstune estimate` and `dstune recommend`: what the catalogue knows, one a line, for `grep`."""

from __future__ import annotations

from typing import Any

import click

from dstune.lang import say


def list_options(function: Any) -> Any:
    """Adds both; each prints and ends the command."""
    for name, shown, help_ in (
        ("--list-models", _models, say("The catalogue's models, and nothing else.", "只列出目录中的模型。")),
        ("--list-gpus", _gpus, say("The catalogue's cards, and nothing else.", "只列出目录中的显卡。")),
    ):
        option = click.option(name, is_flag=True, is_eager=True, expose_value=False, callback=_printer(shown), help=help_)
        function = option(function)
    return function


def _printer(shown: Any) -> Any:
    def print_and_end(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            for line in shown():
                click.echo(line)
            ctx.exit()

    return print_and_end


def _models() -> list[str]:
    """Id, parameters, longest sequence, smallest first."""
    from dstune.catalog import models

    rows = sorted(models.rows(), key=lambda m: m.params)
    return [f"{m.id:<60} {m.params / 1e9:>7.2f} B  {m.context:>9,} tokens" for m in rows]


def _gpus() -> list[str]:
    """Id and name with the memory."""
    from dstune.catalog import gpus

    return [f"{g.id:<32} {g.label}" for g in sorted(gpus.rows(), key=lambda g: (g.vendor != "NVIDIA", g.memory_gib, g.id))]
