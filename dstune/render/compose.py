"""compose.yaml: the service with its card, cache, shared memory, health check and a port for this machine only."""

from __future__ import annotations

from dstune.model.plan import Artifact, Plan
from dstune.render.context import Context, Deployment
from dstune.render.template import fill


def render(plan: Plan, context: Context) -> Artifact:
    """The compose file: it builds the Dockerfile beside it, or runs the engine's own image."""
    from dstune.render.dockerfile import deploy

    own = "dockerfile" in context.beside
    d = deploy(plan, context) if own else Deployment(plan, context, context.stack(plan))
    return Artifact("compose.yaml", fill("compose.yaml", build=own or not d.stack.official, **d.names()))
