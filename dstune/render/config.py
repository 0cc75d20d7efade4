"""config.yaml: for vLLM and SGLang what `--config` reads, for a transformers program its settings."""

from __future__ import annotations

from dstune.errors import DstuneError
from dstune.lang import pick, say
from dstune.model.plan import Artifact, Plan
from dstune.render.context import Context, client_notes, output_tokens, sampling, subject
from dstune.render.launch import PORTS, bare, launch_version
from dstune.render.template import fill

FILES: dict[str, str] = {"vllm": "config.vllm.yaml", "sglang": "config.vllm.yaml", "transformers": "config.app.yaml"}


def render(plan: Plan, context: Context) -> Artifact:
    """The configuration. Raises `DstuneError` for an engine that reads none."""
    if plan.engine not in FILES:
        raise DstuneError(
            say(f"{plan.engine} reads no configuration file", f"{plan.engine} 不读取配置文件"),
            say(
                "its options stand on the command line or in LLAMA_ARG_* variables", "其参数写在命令行或 LLAMA_ARG_* 环境变量中"
            ),
            "dstune generate launch",
        )
    text = fill(
        FILES[plan.engine], plan=plan, context=context, run=bare(plan, context), model=context.model, subject=subject(plan, context),
        hints=client_notes(plan, context.model), sampling=sampling(plan, context.model), output=output_tokens(plan),
        version=launch_version(plan, context), port=context.port or PORTS[plan.engine], values={s.key: s.value for s in plan.settings},
        whys={s.key: pick(s.why) for s in plan.settings},
    )  # fmt: skip
    return Artifact("config.yaml", text)
