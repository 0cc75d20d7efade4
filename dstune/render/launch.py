"""launch.sh: the command with its reasons, for a machine without containers."""

from __future__ import annotations

from dstune.model.plan import Artifact, Plan
from dstune.render.command import Command, command
from dstune.render.context import Context, client_notes, served, subject
from dstune.render.template import fill

PROGRAMS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "llama.cpp": ("llama-server",),
    "hf-serve": ("transformers", "serve"),
    "transformers": ("python3", "app.py"),
}
PORTS: dict[str, int] = {"vllm": 8000, "sglang": 30000, "llama.cpp": 8080, "hf-serve": 8000, "transformers": 7860}


def launch_version(plan: Plan, context: Context) -> str:
    """The engine version whose options are used."""
    return context.version or plan.engine_version


def bare(plan: Plan, context: Context) -> Command:
    """The command on the machine itself."""
    host = "0.0.0.0" if context.public else "127.0.0.1"
    program = PROGRAMS[plan.engine] if plan.engine != "transformers" else ("python3", context.app)
    words = served(plan)
    if context.folder:
        words = ("--model", context.folder) if plan.engine == "llama.cpp" else (context.folder,)
    port = context.port or PORTS[plan.engine]
    return command(plan, context.model, plan.engine, launch_version(plan, context), words, host, port, program)


def render(plan: Plan, context: Context) -> Artifact:
    """The script."""
    text = fill(
        "launch.sh", plan=plan, context=context, run=bare(plan, context), version=launch_version(plan, context),
        hints=client_notes(plan, context.model), subject=subject(plan, context),
    )  # fmt: skip
    return Artifact("launch.sh", text)
