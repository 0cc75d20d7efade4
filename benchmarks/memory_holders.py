"""How small is the unexplained rest? `dstune doctor`'s split of a process's memory against NVML readings of real ones.

python benchmarks/memory_holders.py      no GPU needed: recipes/measurements/*.json hold the readings

Each reading becomes the evidence that the probes give of such a process: NVML's number, the model, the settings of its program. As in life,
lengths and numbers of requests are not among them: one request of 512 + 512 tokens is assumed. "one short request" are the readings that
are of that kind; the others (batches, long prompts) show what doctor says where its assumption does not hold.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dstune.model import Evidence, Fact
from dstune.plan.decompose import Holder, decompose

FOLDER = Path(__file__).parents[1] / "recipes" / "measurements"
R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
SHORT = 1100
"""Tokens of prompt and answer up to which a single request counts as a short one."""


def holder(mib: float, model: str, settings: list[str]) -> Holder:
    """The process as doctor splits it."""
    facts = {
        "gpu0": {"name": "NVIDIA H200", "memory_total_mib": 143771, "memory_reserved_mib": 615, "memory_used_mib": mib},
        "process": {"pid": 1, "gpu": 0, "memory_mib": mib, "engine": "transformers", "engine_version": "5.17.0", "model": model, "settings": settings},
    }  # fmt: skip
    evidence = Evidence(tuple(Fact(s, n, v) for s, own in facts.items() for n, v in own.items()))  # type: ignore[arg-type]
    return decompose(evidence)[0]


def readings() -> Iterator[tuple[str, str, Holder]]:
    """(kind, name, split) of every NVML reading of a process in the measurements."""
    for file in ("h200.json", "h200-shapes.json"):
        for row in json.loads((FOLDER / file).read_text(encoding="utf-8"))["measurements"]:
            if row["metric"] != "peak_vram_gib":
                continue
            flags: dict[str, Any] = row.get("flags") or {}
            dtype = row["dtype_or_quant"]
            given = (
                [f"transformers.dtype={dtype}"]
                if dtype in ("bfloat16", "float16", "float32")
                else ["transformers.load_in_4bit=True"]
            )
            given.append(f"transformers.attn_implementation={flags.get('attn_implementation', 'sdpa')}")
            short = row["batch_or_concurrency"] == 1 and row["input_tokens"] + row["output_tokens"] <= SHORT
            yield ("one short request" if short else "other"), row["id"], holder(1024 * row["value"], row["model"], given)
    yield from programs()


def programs() -> Iterator[tuple[str, str, Holder]]:
    """The program of `dstune generate app` at work: a static cache of the size in its config.yaml."""
    data = json.loads((FOLDER / "h200-generated-app.json").read_text(encoding="utf-8"))
    for name, phase in data["phases"].items():
        command = str(phase.get("command", ""))
        slots, context = (re.search(rf"--{option} (\d+)", command) for option in ("concurrency", "context"))
        sizes = [v["process_first_gb"] for v in phase.values() if isinstance(v, dict) and v.get("process_first_gb")]
        if not slots or not context or not sizes:
            continue
        given = [
            "transformers.dtype=bfloat16",
            f"transformers.max_batch_size={slots[1]}",
            f"transformers.max_cache_len={context[1]}",
        ]
        given += ["generate.cache_implementation=static", *(["transformers.quantization=nf4"] if "nf4" in command else [])]
        yield "generated app", name, holder(sizes[0] * 1e9 / 2**20, R1, given)


def main() -> None:
    """A line a kind, and the readings with the largest rest."""
    found = list(readings())
    for kind in dict.fromkeys(k for k, _, _ in found):
        rests = [abs(h.rest or 0.0) / (h.mib or 1.0) for k, _, h in found if k == kind]
        within = sum(h.within for k, _, h in found if k == kind)
        print(
            f"{kind}: {len(rests)} readings, rest median {100 * statistics.median(rests):.1f} %, worst {100 * max(rests):.1f} %, in band {within}"
        )
    for kind in ("one short request", "generated app"):
        for _, name, h in sorted((f for f in found if f[0] == kind), key=lambda f: -abs(f[2].rest or 0.0))[:5]:
            print(f"  {kind}, {name}: NVML {h.mib or 0:,.0f} MiB, parts {h.estimate:,.0f}, rest {h.rest or 0:+,.0f}")


if __name__ == "__main__":
    main()
