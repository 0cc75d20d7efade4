"""One plan for every GPU of the catalogue, kept as a line and read by eye once. `python -m tests.test_plan_golden` writes them."""

from pathlib import Path

from dstune.catalog import gpus, models
from dstune.errors import DstuneError
from dstune.model.plan import Plan
from dstune.plan.search import Wish, recommend

KEPT = Path(__file__).parent / "golden" / "plans.txt"
MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
TWINS = (("rtx-3090", 2),)
"""More than one card of a kind."""


def compact(plan: Plan) -> str:
    """Engine, settings, memory and speed in one line."""
    skip = ("generate.", "vllm.reasoning_parser", "llamacpp.jinja", "llamacpp.n_gpu_layers", "llamacpp.flash_attn")
    chosen = " ".join(f"{s.key.split('.')[1]}={s.value}" for s in plan.settings if not s.key.startswith(skip))
    total = sum(m.mib for m in plan.memory)
    p = plan.predictions
    out = f"{plan.engine} {plan.engine_version} {chosen} | {total:.0f} MiB, {p['decode_tok_s_per_stream'].value:.0f} tok/s"
    if plan.engine == "llama.cpp":
        out += f" | {plan.launch.split(' ')[2]}"
    return out.replace("  ", " ")


def lines() -> list[str]:
    """A line for every board, then for the twins."""
    spec = models.find(MODEL)
    out = []
    for board, count in [(g.id, 1) for g in gpus.rows()] + list(TWINS):
        gpu = gpus.find(board)
        try:
            text = compact(recommend(Wish(gpu, spec, count)))
        except DstuneError as error:
            text = f"none: {error.what}; {error.why}"
        out.append(f"{board}{f' x{count}' if count > 1 else ''}: {text}")
    return out


def test_plans_are_the_kept_ones():
    assert lines() == KEPT.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    KEPT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
