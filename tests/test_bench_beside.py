"""What is read beside a load, and what doctor makes of a saved one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dstune.cli.bench_beside import counters
from dstune.load.evidence import facts
from dstune.probes.nvidia_timeline import summary
from tests.test_load import start

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    process, url = start("--ttft-ms", "20", "--itl-ms", "4")
    yield url
    process.kill()
    process.wait()


def causes(run: Run, saved: Path) -> list[str]:
    done = run("doctor", "--no-host", "--run", str(saved), "--json")
    assert done.returncode in (0, 1), done.stderr
    return [f["cause"] for f in json.loads(done.stdout)["findings"]]


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("mock", None),
        ("mock:serial", "second-request-waits"),
        ("mock:burst", "stream-arrives-at-once"),
    ],
)
def test_doctor_reads_a_saved_load(server: str, run_dstune: Run, tmp_path: Path, model: str, cause: str | None) -> None:
    saved = tmp_path / "run.json"
    done = run_dstune("bench", server, "-n", "8", "-c", "4", "--max-tokens", "25", "--model", model, "-o", str(saved))
    assert done.returncode == 0, done.stderr
    found = causes(run_dstune, saved)
    assert found[:1] == ([cause] if cause else []), found


def test_doctor_refuses_what_is_no_load(run_dstune: Run, tmp_path: Path) -> None:
    other = tmp_path / "x.json"
    for text in ("{}", "[1]", "no json"):
        other.write_text(text)
        done = run_dstune("doctor", "--no-host", "--run", str(other))
        assert done.returncode == 2
        assert "dstune bench" in done.stderr
        assert "Traceback" not in done.stderr


def test_behaviours_are_evidence() -> None:
    rows = [
        {"probe": "endless-newlines", "hits": 5, "samples": 24, "excerpt": "4.\n\n\n"},
        {"probe": "line-loop", "hits": 1, "samples": 24, "excerpt": "x"},
    ]
    found = {f.name: f.value for f in facts({"behaviours": rows}, "run.json")}
    assert found == {"behaviours": ["endless-newlines"]}, "one hit of 24 is no finding"


def test_doctor_asks_a_running_server_for_its_texts(server: str, run_dstune: Run) -> None:
    done = run_dstune("doctor", "--no-host", "--endpoint", server, "--behaviour", "--json")
    data = json.loads(done.stdout)
    assert {r["probe"] for r in data["behaviours"]} >= {"phrase-loop", "never-stops"}
    assert data["trial"]["judged"] == 24
    text = run_dstune("doctor", "--no-host", "--endpoint", "http://127.0.0.1:1", "--behaviour")
    assert "server-not-running" in text.stdout
    assert "Behaviour not asked for" in text.stdout
    alone = run_dstune("doctor", "--no-host", "--behaviour")
    assert alone.returncode == 2
    assert "--endpoint" in alone.stderr


METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} 0.02
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:request_queue_time_seconds_bucket{{le="1.0"}} {count}
vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {count}
vllm:request_queue_time_seconds_sum {sum}
vllm:request_queue_time_seconds_count {count}
"""


def test_counters_are_those_of_the_load_alone() -> None:
    texts = [
        METRICS.format(running=0, waiting=0, tokens=1000, count=10, sum=50.0),
        METRICS.format(running=3, waiting=61, tokens=1300, count=12, sum=50.4),
        METRICS.format(running=0, waiting=0, tokens=1640, count=20, sum=52.0),
    ]
    found = counters(texts, 10.0)
    assert found["generation_tokens"] == 640
    assert found["queue_ms"]["mean"] == pytest.approx(200.0)
    assert (found["running_max"], found["waiting_max"], found["kv_usage_max_pct"]) == (3, 61, 2.0)


def test_load_with_metrics_gives_both_causes_to_doctor(run_dstune: Run, tmp_path: Path) -> None:
    scrape = tmp_path / "m.prom"
    scrape.write_text(METRICS.format(running=3, waiting=61, tokens=10, count=1, sum=1.0))
    process, url = start("--ttft-ms", "5", "--itl-ms", "1", "--kind", "vllm", "--metrics", str(scrape))
    try:
        saved = tmp_path / "run.json"
        done = run_dstune("bench", url, "-n", "6", "-c", "2", "--max-tokens", "8", "-o", str(saved))
        assert "at most 3 running, 61 waiting" in done.stdout, done.stdout + done.stderr
        assert "admission-limit-with-free-kv" in causes(run_dstune, saved)
    finally:
        process.kill()
        process.wait()


def test_gpu_timeline_beside_the_load(server: str, run_dstune: Run, tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.fail("needs gcc: it builds the stand-in NVML library")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, HERE / "fakenvml" / "fakenvml.c"],
        check=True,
    )
    env = {"LD_LIBRARY_PATH": str(tmp_path), "FAKENVML": str(HERE / "fakenvml" / "rtx4090-thermal.ini")}
    saved = tmp_path / "run.json"
    done = run_dstune("bench", server, "-c", "4", "--duration", "2s", "--max-tokens", "25", "-o", str(saved), **env)
    assert done.returncode == 0, done.stderr
    card = json.loads(saved.read_text())["trial"]["gpu"][0]
    assert "4090" in card["name"]
    assert 12 <= card["samples"] <= 24, "about ten a second for two seconds"
    assert card["reasons_pct"]["hw_thermal_slowdown"] == 100.0 or card["reasons_pct"].get("sw_thermal_slowdown") == 100.0
    assert card["rows"][0][0] >= 0
    assert causes(run_dstune, saved)[0] == "gpu-throttled-thermal-power"


def test_timeline_summary_takes_the_load_alone() -> None:
    rows: list[list[Any]] = [
        [float(t), 0 if t % 2 else 90, 1000 + t, 300.0, 2000, 60, ["sw_power_cap"] if t > 7 else []] for t in range(20)
    ]
    (found,) = summary({"gpu0": {"name": "x", "rows": rows}}, 4.0, 11.0)
    assert found["samples"] == 8
    assert found["idle_pct"] == 50.0
    assert found["memory_used_mib"] == {"mean": 1007.5, "min": 1004, "max": 1011}
    assert found["reasons_pct"] == {"sw_power_cap": 50.0}
    assert summary({}, 0, 1) == []


def test_no_gpu_costs_nothing() -> None:
    code = "from dstune.probes.nvidia_timeline import Timeline; t = Timeline(); print(t.rows())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": ""}
    )
    assert done.stdout.strip() == "{}" or "gpu0" in done.stdout
