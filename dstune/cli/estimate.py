"""`dstune estimate`: memory and speed of one fixed configuration, part by part; `--jsonl` answers rows on standard input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from dstune.cli.listing import list_options
from dstune.cli.options import common, emit, empty, engine_version_option
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model.plan import Plan

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
_ROW = {
    "context": "max_model_len", "utilization": "gpu_memory_utilization", "max_num_seqs": "max_num_seqs", "batched_tokens": "max_num_batched_tokens",
    "attention": "attn", "cache": "cache", "kv_dtype": "kv_cache_dtype",
}  # fmt: skip


@click.command(
    help=say(
        "Memory and speed of one fixed configuration, part by part. Nothing is searched and nothing downloaded.",
        "某个固定配置的显存与速度，逐项列出。不搜索，也不下载。",
    )
)
@click.option("--gpu", help=say("Card, as people or NVML name it; this host's without it.", "显卡名；不给则用本机的。"))
@click.option("--gpus", type=click.IntRange(1, 16), default=1, show_default=True, help=say("How many of them.", "显卡数量。"))
@click.option(
    "--model",
    default=R1,
    show_default=True,
    help=say("Catalogue id, or a folder with config.json.", "目录里的模型名，或含 config.json 的文件夹。"),
)
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm", "llama.cpp", "sglang"]),
    default="transformers",
    show_default=True,
    help=say("Engine.", "引擎。"),
)
@engine_version_option
@click.option("--dtype", default="", help=say("bf16, fp16 or fp32.", "bf16、fp16 或 fp32。"))
@click.option(
    "--quant", default="", help=say("awq, gptq, fp8, nf4, int8, or a GGUF type.", "awq、gptq、fp8、nf4、int8，或 GGUF 类型。")
)
@click.option(
    "--context", type=click.IntRange(64), help=say("Longest sequence (max_model_len, -c).", "最长序列（max_model_len、-c）。")
)
@click.option("--prompt", type=click.IntRange(1), default=512, show_default=True, help=say("Prompt tokens.", "输入 token 数。"))
@click.option("--output", type=click.IntRange(0), default=512, show_default=True, help=say("Answer tokens.", "输出 token 数。"))
@click.option(
    "--concurrency", type=click.IntRange(1), default=1, show_default=True, help=say("Sequences at once.", "并发序列数。")
)
@click.option(
    "--utilization",
    type=click.FloatRange(0.01, 1),
    help=say("gpu_memory_utilization, mem_fraction_static.", "gpu_memory_utilization、mem_fraction_static。"),
)
@click.option("--max-num-seqs", type=click.IntRange(1), help=say("Sequences in one step.", "单步最大序列数。"))
@click.option("--batched-tokens", type=click.IntRange(1), help=say("max_num_batched_tokens.", "max_num_batched_tokens。"))
@click.option(
    "--attention",
    type=click.Choice(["eager", "sdpa", "flash_attention_2"]),
    help=say("Attention of transformers.", "transformers 的注意力实现。"),
)
@click.option(
    "--cache",
    type=click.Choice(["dynamic", "static", "offloaded", "quantized", "paged"]),
    help=say("Cache of transformers (paged: continuous batching).", "transformers 的缓存类型（paged：连续批处理）。"),
)
@click.option("--kv-dtype", help=say("Type of the KV cache (fp8, q8_0…).", "KV 缓存类型（fp8、q8_0……）。"))
@click.option("--enforce-eager", is_flag=True, help=say("vLLM without CUDA graphs.", "vLLM 不用 CUDA graph。"))
@click.option("--gpu-layers", type=click.IntRange(0), help=say("llama.cpp -ngl.", "llama.cpp 的 -ngl。"))
@click.option(
    "--host-launch-us",
    type=click.FloatRange(0.5, 500),
    help=say("What a kernel launch of an eager loop costs this host.", "主机在 eager 循环中发起一次内核的耗时（微秒）。"),
)
@click.option(
    "--calibrate",
    type=click.Path(exists=True, dir_okay=False),
    help=say(
        "Takes that cost from a run of “dstune bench --local … -o FILE”.", "从“dstune bench --local … -o FILE”的结果取该耗时。"
    ),
)
@click.option("--explain", is_flag=True, help=say("Formula and source of each part.", "给出每一项的公式和来源。"))
@click.option("--jsonl", is_flag=True, help=say("Rows on standard input, an answer a line.", "从标准输入逐行读取，逐行回答。"))
@list_options
@common
def command(explain: bool, jsonl: bool, as_json: bool, **options: Any) -> int:
    if jsonl:
        return stream()
    plan = one(options)
    if explain and not as_json:
        from dstune.report.plan import plan_text

        click.echo(plan_text(plan, explain=True))
        return 0
    emit(replace(empty("estimate"), plan=plan), as_json)
    return 0


def one(options: dict[str, Any]) -> Plan:
    """The plan (without search) of the options."""
    from dstune.catalog import models
    from dstune.model.plan import Workload
    from dstune.plan.estimate import predictions
    from dstune.plan.memory import memory
    from dstune.plan.rows import ask_of, checkpoint_dtype, with_card_dtype

    flags = {flag: options[name] for name, flag in _ROW.items() if options.get(name)}
    if options["enforce_eager"]:
        flags["enforce_eager"] = True
    if options["gpu_layers"] is not None:
        flags["ngl"] = options["gpu_layers"]
    card, memory_mib = options["gpu"], None
    if not card:
        from dstune.cli.recommend import host_card

        board, _, options["others"], _ = host_card(command="estimate")
        card, memory_mib = board.id, board.memory_mib
    model, engine, version = models.get(options["model"]), options["engine"], options["engine_version"]
    text = options["quant"] or options["dtype"] or ("Q4_K_M" if engine == "llama.cpp" else "")
    row = {
        "engine": engine, "engine_version": version, "gpu": card, "n_gpus": options["gpus"], "model": options["model"],
        "dtype_or_quant": text, "batch_or_concurrency": options["concurrency"], "input_tokens": options["prompt"],
        "output_tokens": options["output"], "flags": flags,
    }  # fmt: skip
    ask = ask_of(row)
    if options["quant"] and options["dtype"]:
        from dstune.plan.quant import parse

        ask = replace(ask, dtype=parse(options["dtype"])[0])
    ask = with_card_dtype(replace(ask, others_mib=options.get("others") or 0.0))
    if launch := _launch_us(options, model):
        ask = replace(ask, host_launch_us=launch)
    if memory_mib:
        ask = replace(ask, gpu=replace(ask.gpu, memory_mib=memory_mib))
    mem = memory(ask)
    room = mem.room_mib
    notes = [_room(room, ask.total)]
    if engine == "transformers" and ask.cache == "dynamic":
        notes.extend(_pace(ask))
    longest = ask.max_len or model.context
    if engine == "vllm" and mem.kv_tokens is not None and mem.kv_tokens < longest:
        en = f"vLLM refuses to start: one sequence of {longest:,} tokens does not fit the pool of {mem.kv_tokens:,.0f}; lower --context."
        notes.append(
            {
                "en": en,
                "zh": f"vLLM 会拒绝启动：{longest:,} token 的序列放不进 {mem.kv_tokens:,.0f} 的缓存池；请降低 --context。",
            }
        )
    if not text and engine == "transformers" and checkpoint_dtype(model, engine, version) == "float32":
        notes.append(
            {
                "en": "transformers before 5.0 loads float32 when no dtype is given",
                "zh": "transformers 5.0 之前不指定 dtype 时以 float32 加载",
            }
        )
    return Plan(
        engine, version, options["model"], ask.gpu.label, ask.gpus, (), mem.lines, predictions(ask, mem), (), tuple(notes), "",
        Workload(ask.prompt, ask.output, ask.batch),
    )  # fmt: skip


def _launch_us(options: dict[str, Any], model: Any) -> float:
    """The host's launch cost: given, or read from a measured run; 0 for neither."""
    if not options.get("calibrate"):
        return float(options.get("host_launch_us") or 0.0)
    import json

    from dstune.catalog import models
    from dstune.plan.calibrate import launch_us

    try:
        with open(options["calibrate"], encoding="utf-8") as f:
            run = json.load(f)
    except (OSError, ValueError) as error:
        raise DstuneError(
            say(f"{options['calibrate']} is no JSON file", f"{options['calibrate']} 不是 JSON 文件"),
            str(error),
            "dstune bench --local DIR -o run.json",
        ) from None
    return launch_us(run if isinstance(run, dict) else {}, model, {m.params: m for m in models.rows()})


def _pace(ask: Any) -> list[dict[str, str]]:
    """What sets the pace of an eager loop, and how to know it."""
    from dstune.plan.speed import decode_step, launch_bound, launch_us, roofline_share

    step = decode_step(ask, ask.batch, ask.prompt)
    if not launch_bound(ask.gpu, step):
        return []
    share, cost = roofline_share(ask, ask.batch, ask.prompt), launch_us(ask)
    en = f"Launches of the host set the pace ({cost:.1f} us each): {share:.0%} of what the memory bandwidth allows."
    zh = f"瓶颈是主机发起内核（每次 {cost:.1f} 微秒）：只有显存带宽上限的 {share:.0%}。"
    if not ask.host_launch_us:
        en += " Hosts differ by up to two times: measure yours with dstune bench --local DIR -c 1 -o run.json, then --calibrate run.json."
        zh += "不同主机可差一倍：先 dstune bench --local DIR -c 1 -o run.json 实测，再加 --calibrate run.json。"
    return [{"en": en, "zh": zh}]


def _room(room: float, total: float) -> dict[str, str]:
    if room < 0:
        return {
            "en": f"Does not fit: {-room:,.0f} MiB more than the {total:,.0f} MiB that CUDA sees on this card.",
            "zh": f"放不下：比该卡 CUDA 可见的 {total:,.0f} MiB 多 {-room:,.0f} MiB。",
        }
    return {"en": f"Fits: {room:,.0f} of {total:,.0f} MiB stay free.", "zh": f"放得下：{total:,.0f} MiB 中还剩 {room:,.0f}。"}


def stream() -> int:
    """Reads rows from standard input and answers each, with predictions or with the reason why not."""
    import json
    import sys

    from dstune.plan.estimate import answer

    for line in sys.stdin:
        if not line.strip():
            continue
        ident = None
        try:
            row = json.loads(line)
            ident = row.get("id")
            found = answer(row)
            out: dict[str, Any] = {
                "id": ident,
                "predictions": {k: {"value": p.value, "low": p.low, "high": p.high} for k, p in found.items()},
            }
            if row.get("want") and row["want"] not in found:
                out = {
                    "id": ident,
                    "error": say(
                        f"no physics for {row['want']} under {row['engine']}", f"{row['engine']} 没有 {row['want']} 的物理模型"
                    ),
                }
        except DstuneError as error:
            out = {"id": ident, "error": f"{error.what}: {error.why}" if error.why else error.what}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            out = {"id": ident, "error": say(f"not a row: {error}", f"不是有效的行：{error}")}
        sys.stdout.write(json.dumps(out, ensure_ascii=False) + "\n")
    return 0
