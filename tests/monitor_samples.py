"""Samples, a diagnosis and a plan for the monitor's tests: fixed figures, in both languages, no clock. Illustrative, not measured."""

import math
from dataclasses import replace

from dstune.lang import say
from dstune.model import Cite, Diagnosis, Evidence, Fact, Finding, Fix, Unknown
from dstune.model.plan import Artifact, MemoryLine, Plan, Prediction, Rejected, Setting
from dstune.tui.doing import Actions
from dstune.tui.feed import CannedFeed
from dstune.tui.plan import Knobs

LOG = "tests/data/monitor.log"


def facts(subject: str, **values: object) -> list[Fact]:
    return [Fact(subject, name, value, "canned") for name, value in values.items()]  # type: ignore[arg-type]


def card(
    number: int, name: str = "NVIDIA GeForce RTX 4090", total: int = 24564, used: int = 21400, busy: int = 97, **more: object
) -> list[Fact]:
    return facts(
        f"gpu{number}", name=name, memory_total_mib=total, memory_used_mib=used, memory_free_mib=total - used - 348, utilization_pct=busy,
        **{
            "temperature_c": 71, "power_draw_w": 431.0, "power_limit_w": 450.0, "clock_sm_mhz": 2520, "clock_memory_mhz": 10251, "performance_state": 2,
            "memory_utilization_pct": busy * 2 // 3, "pcie_gen": 4, "pcie_width": 16, "pcie_rx_mib_s": 61.0, "pcie_tx_mib_s": 18.0, "fan_pct": 62,
            "temperature_slowdown_c": 93, "clock_event_reasons": ["sw_power_cap"], **more,
        },
    )  # fmt: skip


def process(number: int, gpu: int, mib: int, command: str, **more: object) -> list[Fact]:
    return facts(
        "process" + (str(number) if number else ""),
        pid=4100 + number,
        gpu=gpu,
        memory_mib=mib,
        command=command,
        name=command.split()[0],
        **more,
    )


def server(subject: str = "server", **more: object) -> list[Fact]:
    return facts(
        subject,
        **{
            "engine": "vllm", "version": "0.10.1", "url": "http://127.0.0.1:8000", "reachable": True, "models": ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"],
            "running": 8, "waiting": 24, "kv_usage_pct": 11.0, "kv_tokens": 530432, "generation_tok_s": 611.0, "ttft_p50_ms": 5210.0, "ttft_p95_ms": 9870.0,
            "itl_p50_ms": 12.9, "itl_p95_ms": 14.2, "prefix_hit_pct": 38.0, **more,
        },
    )  # fmt: skip


HOST = facts("host", cpu_pct=14.0, ram_total_mib=64000, ram_available_mib=41000, swap_used_mib=0, load_1m=2.1)


def samples(count: int = 90) -> list[Evidence]:
    """A minute and a half of one 4090 that serves a model, with a desktop beside it."""
    out = []
    for i in range(count):
        busy = min(97, 10 + i * 3) - int(6 * math.sin(i / 4))
        made = [
            *card(
                0,
                busy=busy,
                used=20200 + min(1200, 20 * i),
                temperature_c=48 + min(23, i // 3),
                power_draw_w=float(90 + 4 * min(busy, 85)),
            ),
            *process(
                0,
                0,
                20100,
                "vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --max-num-seqs 8",
                engine="vllm",
                ours=True,
                container="web-vllm-1",
                settings=["vllm.model=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "vllm.max_num_seqs=8"],
            ),
            *process(1, 0, 512, "/usr/lib/xorg/Xorg vt2 -displayfd 3"),
            *server(generation_tok_s=600.0 + 12 * math.sin(i / 5), waiting=24 if i > 20 else 0, running=8 if i > 5 else 2),
            *HOST,
        ]
        out.append(Evidence(tuple(made), (), (), {"started": 1000.0 + i}))
    return out


def many(cards: int = 8) -> Evidence:
    """Eight cards and thirty processes."""
    made = list(HOST) + server()
    for n in range(cards):
        reasons = ["hw_thermal_slowdown"] if n == 3 else []
        made += card(
            n,
            "NVIDIA H100 80GB HBM3",
            81559,
            9000 * (n + 1),
            12 * n,
            temperature_c=40 + 6 * n,
            power_limit_w=700.0,
            clock_event_reasons=reasons,
        )
    for n in range(30):
        made += process(n, n % cards, 1000 + 100 * n, f"python worker.py --rank {n}")
    return Evidence(tuple(made), (), (), {"started": 1000.0})


def finding() -> Finding:
    return Finding(
        "batch-limit-too-small", "server", "warning", "high",
        say("24 requests wait while the KV cache is 11 % full.", "24 个请求在排队，而 KV 缓存只用了 11 %。"),
        say("At most max_num_seqs requests run at once. That limit binds here, not the memory.", "同时运行的请求数受 max_num_seqs 限制；这里卡住的是该上限，而不是显存。"),
        (Cite(LOG, 6, "24 requests wait although the KV cache is 11 % full"), Cite("GET http://127.0.0.1:8000/metrics", None, "server.waiting = 24")),
        (Fix({"en": "Raise the limit to 64", "zh": "把上限提高到 64"}, "flag", "restart", set={"vllm.max_num_seqs": "64"}),),
        say("no request waits while the cache is below 90 %", "缓存低于 90 % 时没有请求排队"),
    )  # fmt: skip


def diagnosis(_: Evidence | None = None) -> Diagnosis:
    first = finding()
    slow = replace(
        first, cause="first-token-slow", severity="error", message=say("The first token takes 5.2 s at the median.", "首 token 中位延迟为 5.2 秒。"),
        because="batch-limit-too-small", fixes=(), evidence=(Cite("GET http://127.0.0.1:8000/metrics", None, "server.ttft_p50_ms = 5210"),), verify="",
    )  # fmt: skip
    hot = replace(
        first, cause="gpu-power-limited", severity="info", confidence="medium", message=say("The card runs at its power limit of 450 W.", "显卡运行在 450 W 功耗上限。"),
        fixes=(), evidence=(Cite("nvml: CurrentClocksEventReasons", None, "gpu.clock_event_reasons = ['sw_power_cap']"),), verify="",
    )  # fmt: skip
    return Diagnosis((first, slow, hot), (Unknown("prefix-cache-off", say("the launch command", "启动命令")),), 200)


def plan(knobs: Knobs) -> Plan:
    """A plan whose figures follow the knobs in an obvious way."""
    kv = 28672 * knobs.context * knobs.concurrency / 2**20
    return Plan(
        "vllm", "0.10.1", knobs.model, "NVIDIA GeForce RTX 4090", knobs.gpus, (Setting("vllm.max_model_len", knobs.context),),
        (MemoryLine("weights: layers", 2900.0), MemoryLine("weights: embedding", 445.0), MemoryLine("KV cache pool", kv), MemoryLine("CUDA context", 540.0)),
        {"decode_tok_s_per_stream": Prediction(160.0, 120.0, 190.0), "peak_vram_gib": Prediction((3885 + kv) / 1024, 0.95 * (3885 + kv) / 1024, 1.1 * (3885 + kv) / 1024)},
        (Rejected("FP8", {"en": "16 bit fits, and loses nothing", "zh": "16 位放得下，且没有损失"}),), (),
        f"vllm serve {knobs.model} --max-model-len {knobs.context} --max-num-seqs {knobs.concurrency}",
    )  # fmt: skip


class Disk:
    """Stands in for the user's files: what was written, and back."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []
        self.asked: list[frozenset[str]] = []

    def fixes(self, _: Evidence, causes: frozenset[str]) -> tuple[Artifact, ...]:
        self.asked.append(causes)
        text = "vllm serve m --max-num-seqs 64\n"
        shown = "--- launch.sh\n+++ launch.sh\n@@ -1 +1 @@\n-vllm serve m --max-num-seqs 8\n+vllm serve m --max-num-seqs 64"
        return (Artifact("launch.sh", text, shown, (("batch-limit-too-small", say("more requests at once", "提高并发")),)),)

    def script(self, made: Plan, _: Knobs) -> Artifact:
        return Artifact("launch.sh", f"#!/bin/sh\n{made.launch}\n")

    def write(self, made: tuple[Artifact, ...]) -> str:
        self.written += [(a.path, a.text) for a in made]
        return "written"

    def undo(self) -> str:
        return f"taken back: {self.written.pop()[0]}"

    def undoable(self) -> list[str]:
        return [f"/srv/{path}" for path, _ in self.written[-1:]]


def actions(disk: Disk | None = None) -> Actions:
    disk = disk or Disk()
    return Actions(diagnosis, disk.fixes, disk.write, disk.undo, disk.undoable, None, disk.script, plan)


def feed(count: int = 90) -> CannedFeed:
    return CannedFeed(samples(count))


OUTCOME = {
    "requests": {"ok": 46, "failed": 0}, "duration_s": 30.0, "errors": {}, "output_tok_s": 598.4, "request_s": 4.68, "ttft_ms": {"p50": 5180.0, "p95": 9700.0, "p99": 9990.0, "mean": 5000.0},
    "itl_ms": {"p50": 12.8, "p95": 14.1, "p99": 15.0, "mean": 12.9}, "e2e_ms": {"p50": 6820.0, "p95": 11400.0, "p99": 11600.0, "mean": 6900.0},
}  # fmt: skip
BETTER = {
    **OUTCOME,
    "output_tok_s": 2210.0,
    "request_s": 17.3,
    "ttft_ms": {"p50": 92.0, "p95": 180.0, "p99": 210.0, "mean": 99.0},
}
