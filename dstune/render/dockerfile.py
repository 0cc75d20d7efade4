"""Dockerfile: a base whose CUDA starts on the driver, pinned packages, a user of its own, the model mounted."""

from __future__ import annotations

from dataclasses import replace

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model.plan import Artifact, Plan
from dstune.render.context import Context, Deployment
from dstune.render.template import fill

_KERNELS = ("awq", "gptq")


def render(plan: Plan, context: Context) -> Artifact:
    """The Dockerfile. Raises `DstuneError` where no combination starts, or where a package would need nvcc to install."""
    return Artifact("Dockerfile", fill("Dockerfile", **deploy(plan, context).names()))


def deploy(plan: Plan, context: Context) -> Deployment:
    """The plan with its container; packages that the plan's quantisation needs are added."""
    context = replace(context, beside=context.beside | {"dockerfile"})
    stack = context.stack(plan)
    if "app" in context.beside:
        stack = replace(stack, health="/health")
    scheme = str(
        next((s.value for s in plan.settings if s.key in ("transformers.quantization", "hfserve.quantization")), "") or ""
    ).lower()
    if any(k in scheme for k in _KERNELS) and plan.engine in ("transformers", "hf-serve"):
        raise DstuneError(
            say(
                f"{scheme} under transformers cannot be installed into this image",
                f"无法在此镜像中安装 transformers 的 {scheme}",
            ),
            say(
                "gptqmodel has no wheel: it is compiled by nvcc against the installed torch",
                "gptqmodel 没有 wheel，需要用 nvcc 针对已装的 torch 编译",
            ),
            say("--engine vllm brings these kernels", "--engine vllm 自带这些内核"),
        )
    four = any(s.key in ("transformers.load_in_4bit", "transformers.load_in_8bit") and s.value for s in plan.settings)
    if (four or "bnb" in scheme or "bitsandbytes" in scheme) and stack.requirements:
        from dstune.render.stack import optional

        stack = replace(stack, requirements=(*stack.requirements, optional("bitsandbytes")))
    return Deployment(plan, context, stack)
