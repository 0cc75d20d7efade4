"""Plan → files: Dockerfile, compose file, launch script, engine configuration.

A renderer is a function of a plan and a context; it reads no machine and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dstune.model.plan import Artifact, Plan
from dstune.render import compose, config, dockerfile, launch
from dstune.render.context import Context

RENDERERS: dict[str, Callable[[Plan, Context], Artifact]] = {
    "dockerfile": dockerfile.render,
    "compose": compose.render,
    "launch": launch.render,
    "config": config.render,
}


def render(kinds: Iterable[str], plan: Plan, context: Context) -> tuple[Artifact, ...]:
    """The files of these kinds, which know of each other (a compose file beside a Dockerfile builds it)."""
    wanted = tuple(dict.fromkeys(kinds))
    context = replace(context, beside=frozenset(wanted))
    return tuple(RENDERERS[kind](plan, context) for kind in wanted)


__all__ = ["RENDERERS", "Context", "render"]
