"""`dstune explain`: a recipe as text, or the list of all."""

from __future__ import annotations

import json
import sys

import click

from dstune import __version__
from dstune.cli.options import common
from dstune.lang import pick, say
from dstune.model import to_json


@click.command(
    help=say(
        "Explain CAUSE (an id that doctor prints); without it, list all causes.",
        "解释 CAUSE（doctor 给出的 id）；不带参数则列出全部。",
    )
)
@click.argument("cause", required=False)
@click.option(
    "--facts", "show_facts", is_flag=True, help=say("List the fact names that --facts takes.", "列出 --facts 可用的名称。")
)
@common
def command(cause: str | None, show_facts: bool, as_json: bool) -> None:
    from dstune.catalog.rules import find, rules

    if show_facts:
        from dstune.catalog.vocabulary import terms

        if as_json:
            click.echo(
                json.dumps(
                    {
                        "schema": "dstune.report/1",
                        "command": "explain",
                        "version": __version__,
                        "facts": {n: {"type": t.type, **t.meaning} for n, t in terms().items()},
                    },
                    ensure_ascii=False,
                    indent=1,
                )
            )
            return
        for name, term in terms().items():
            click.echo(f"{name:36} {term.type:8} {pick(term.meaning)}")
        return
    if cause:
        rule = find(cause)
        if as_json:
            click.echo(
                json.dumps(
                    {"schema": "dstune.report/1", "command": "explain", "version": __version__, "rule": to_json(rule)},
                    ensure_ascii=False,
                    indent=1,
                )
            )
            return
        from dstune.report.text import recipe

        click.echo(recipe(rule))
        return
    if as_json:
        listed = [{"cause": r.cause, "title": r.title, "severity": r.severity} for r in rules().values()]
        click.echo(
            json.dumps(
                {"schema": "dstune.report/1", "command": "explain", "version": __version__, "rules": listed},
                ensure_ascii=False,
                indent=1,
            )
        )
        return
    width = max(map(len, rules()), default=0)
    from dstune.report.text import wrap

    for rule in rules().values():
        # a line a cause for grep; on a terminal the title stays in its column
        title = wrap(pick(rule.title), " " * (width + 2))[width:] if sys.stdout.isatty() else f"  {pick(rule.title)}"
        click.echo(f"{rule.cause:{width}}{title}")
