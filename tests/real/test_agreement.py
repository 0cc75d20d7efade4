"""What bench reports equals what real servers say of themselves: tokens within 3 %, mean time to first token within 10 ms + 3 %.

pytest -m real tests/real/test_agreement.py -s       prints the table of docs/load-testing.md
"""

import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dstune.cli.bench_beside import Beside
from dstune.load.answers import Reply
from dstune.load.detect import detect
from dstune.load.paths import FIRST_VALUE
from dstune.load.run import Options, trial
from dstune.model.plan import Workload
from tests.real import servers
from tests.real.servers import Server, free_port

MS, SHARE = 10.0, 0.03
ROWS: list[tuple[str, str, float, float]] = []


@pytest.fixture(scope="module", autouse=True)
def _table() -> Iterator[None]:
    yield
    print("\n| server | figure | bench | the server itself |\n|---|---|--:|--:|")
    for server, figure, ours, theirs in ROWS:
        print(f"| {server} | {figure} | {ours:.1f} | {theirs:.1f} |")


def tokens_agree(server: str, ours: float, theirs: float) -> None:
    ROWS.append((server, "output tokens", ours, theirs))
    assert ours == pytest.approx(theirs, rel=SHARE)


def ttft_agrees(server: str, ours: float, theirs: float) -> None:
    """The server counts from the arrival of the request to the departure of the token: ours is the later one."""
    ROWS.append((server, "mean time to first token, ms", ours, theirs))
    assert abs(ours - theirs) <= MS + SHARE * theirs, f"{ours:.1f} against {theirs:.1f} ms"


def load(url: str, requests: int, concurrency: int, tokens: int, **more: Any) -> tuple[dict[str, Any], list[Reply]]:
    """A bench run with what the CLI reads beside it."""
    server = detect(url)
    beside = Beside(server.base, (), server.metrics)
    model = more.pop("model", server.models[0] if server.models else "")
    options = Options(
        Workload(output_tokens=tokens, concurrency=concurrency), model=model, requests=requests, duration_s=240, **more
    )
    found, replies = trial(server, options, go=beside.begin)
    figures = found.outcome
    time.sleep(1.0)  # vLLM publishes the last requests with the next statistics
    said = beside.end()
    figures["server"] = {**figures.get("server", {}), **said.get("server", {})}
    assert figures["requests"]["failed"] == 0, figures["error_words"]
    return figures, replies


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 6), (8, 24), (16, 32)])
def test_vllm(vllm: Server, concurrency: int, requests: int) -> None:
    figures, _ = load(vllm.url, requests, concurrency, 32)
    said = figures["server"]
    name = f"vLLM 0.32 CPU, {concurrency} clients"
    assert said["requests"] == requests
    assert figures["tokens_counted_by"] == "usage"
    tokens_agree(name, figures["output_tokens"], said["generation_tokens"])
    ttft_agrees(name, figures["ttft_ms"]["mean"], said["ttft_ms"]["mean"])
    ROWS.append((name, "mean time between tokens, ms", figures["itl_ms"]["mean"], said["itl_ms"]["mean"]))
    assert figures["itl_ms"]["mean"] == pytest.approx(said["itl_ms"]["mean"], rel=0.05, abs=1.0)
    assert figures["prompt_tokens"] == pytest.approx(said["prompt_tokens"], rel=SHARE)
    if concurrency == 16:
        assert said["waiting_max"] > 0 or said["queue_ms"]["mean"] > 50, "16 clients, 8 sequences: a queue"


def test_vllm_tokens_by_the_tokenizer_agree_with_its_usage(vllm: Server) -> None:
    from dstune.load.count import counter

    count = counter(str(servers.MODEL))
    figures, replies = load(vllm.url, 6, 2, 48)
    tokens_agree("vLLM 0.32 CPU, tokenizer.json", sum(count(r.text) for r in replies), figures["output_tokens"])


PERF = re.compile(r"prompt eval time =\s+([\d.]+) ms /\s+(\d+) tokens[\s\S]*?\beval time =\s+([\d.]+) ms /\s+(\d+) runs")


def test_llamacpp(llamacpp: Server) -> None:
    before = llamacpp.log.stat().st_size
    figures, replies = load(llamacpp.url, 6, 1, 32)
    assert figures["tokens_counted_by"] == "chunks", "it sends no usage"
    time.sleep(0.5)
    told = PERF.findall(llamacpp.log.read_bytes()[before:].decode("utf-8", "replace"))[1:]  # without the warm-up
    assert len(told) == 6
    name = "llama.cpp (Python binding)"
    steps = [float(ms) / int(runs) for _, _, ms, runs in told]
    # A prompt of which all but one token is cached counts as a step of decoding, not as a prompt.
    cached = [int(tokens) == 1 for _, tokens, _, _ in told]
    tokens_agree(name, figures["output_tokens"], sum(int(t[3]) + (not c) for t, c in zip(told, cached, strict=True)))
    first = [s if c else float(t[0]) for t, c, s in zip(told, cached, steps, strict=True)]
    ttft_agrees(name, figures["ttft_ms"]["mean"], statistics.fmean(first))
    ROWS.append((name, "mean time between tokens, ms", figures["itl_ms"]["mean"], statistics.fmean(steps)))
    assert all(r.finish for r in replies)


def test_doctor_knows_that_llamacpp_serves_one_after_the_other(
    llamacpp: Server, run_dstune: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    saved = tmp_path / "run.json"
    done = run_dstune("bench", llamacpp.url, "-n", "6", "-c", "3", "--max-tokens", "24", "-o", str(saved))
    assert done.returncode == 0, done.stderr
    trial = json.loads(saved.read_text())["trial"]
    assert trial["at_once"]["streaming_peak"] == 1
    assert trial["stairs"] > 0.9
    found = run_dstune("doctor", "--no-host", "--run", str(saved))
    assert "second-request-waits" in found.stdout, found.stdout
    assert "llama-server" in found.stdout, "the binding cannot batch: another server can"


def test_transformers(transformers: Server) -> None:
    from dstune.load.count import counter

    figures, replies = load(transformers.url, 3, 1, 24, model=str(servers.MODEL))
    assert figures["tokens_counted_by"] == "usage"
    count = counter(str(servers.MODEL))
    written = sum(count(r.text) for r in replies) + sum(r.finish == "stop" for r in replies)
    tokens_agree("transformers serve 5.19 (usage against its text)", figures["output_tokens"], written)


@pytest.fixture
def truth(request: pytest.FixtureRequest, logs: Path) -> Callable[[], list[dict[str, Any]]]:
    """What the chat app itself wrote down since now."""
    file = logs / f"{request.param}.truth"
    before = file.stat().st_size if file.exists() else 0
    return lambda: [json.loads(line) for line in file.read_bytes()[before:].decode().splitlines()]


GRADIO = {"gradio6": "Gradio 6.31", "gradio4": "Gradio 4.33"}


@pytest.mark.parametrize("path", ["queue", "call"])
@pytest.mark.parametrize(("name", "truth"), [(n, n) for n in GRADIO], indirect=["truth"])
def test_gradio(name: str, path: str, truth: Callable[[], list[dict[str, Any]]], request: pytest.FixtureRequest) -> None:
    """Queue and call API show the same app: as many tokens, the same first tokens. Only the queue tells its wait."""
    app: Server = request.getfixturevalue(name)
    figures, replies = load(app.url, 6, 3, 32, warmup=0, gradio_path=path)
    shift = time.time() - time.perf_counter()
    told = truth()
    label = f"{GRADIO[name]}, {path}, 3 clients"
    tokens_agree(label, figures["output_tokens"], sum(len(t["stamps"]) for t in told))
    assert figures["tokens_counted_by"] == "events"
    ours = sorted(r.stamps[0] + shift for r in replies)
    theirs = sorted(t["stamps"][0] for t in told)
    lag = statistics.fmean(a - b for a, b in zip(ours, theirs, strict=True))
    # Gradio 4's event stream looks for news every 50 ms (routes.py, check_rate): a user waits half of it more than the app knows.
    poll = 25.0 if name == "gradio4" else 0.0
    ttft_agrees(label, figures["ttft_ms"]["mean"] - poll, figures["ttft_ms"]["mean"] - 1e3 * lag)
    assert figures["at_once"]["streaming_peak"] == 2, "two at once, as the app says, by both ways"
    if path == "call":
        assert "queue_ms" not in figures.get("server", {})
        return
    started = statistics.fmean(t["begin"] for t in told) - statistics.fmean(r.due + shift for r in replies)
    ROWS.append((label, "mean wait in the queue, ms", figures["server"]["queue_ms"], 1e3 * started))
    assert figures["server"]["queue_ms"] == pytest.approx(1e3 * started, abs=MS + SHARE * 1e3 * started)


@pytest.mark.parametrize("name", GRADIO)
def test_gradio_direct_brings_the_first_value_of_a_function_that_yields(name: str, request: pytest.FixtureRequest) -> None:
    app: Server = request.getfixturevalue(name)
    figures, replies = load(app.url, 3, 3, 32, warmup=0, gradio_path="direct")
    assert {r.text for r in replies} == {"tok0 "}
    assert figures["finish"] == {FIRST_VALUE: 3}


def at_once(told: list[dict[str, Any]]) -> int:
    return max(sum(o["begin"] < t["end"] and t["begin"] < o["end"] for o in told if o["begin"] <= t["begin"]) for t in told)


@pytest.mark.parametrize("name", GRADIO)
def test_gradio_paths_and_the_concurrency_limit(name: str, tmp_path: Path, logs: Path) -> None:
    """One at a time by queue and call API; a direct call does not wait, and is refused where the app is not open to it."""
    file, port = tmp_path / "truth", free_port()

    def asked(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        file.unlink(missing_ok=True)
        figures, _ = load(f"http://127.0.0.1:{port}", 3, 3, 32, warmup=0, gradio_path=path)
        return figures, [json.loads(line) for line in file.read_text().splitlines()]

    def app(how: str) -> Any:
        command = servers.gradio(name, port, "whole.py", how)
        return servers.serve(command, port, "/config", logs / f"{name}-{how}.log", {"CHAT_TRUTH": str(file)})

    with app("open"):
        for path, most in (("queue", 1), ("call", 1), ("direct", 3)):
            figures, told = asked(path)
            assert len(told) == 3
            assert at_once(told) == most, f"{path}: {told}"
            ROWS.append((f"{GRADIO[name]}, limit 1, {path}, 3 clients", "mean whole answer, ms (theirs: the function)", figures["e2e_ms"]["mean"], statistics.fmean(1e3 * (t["end"] - t["begin"]) for t in told)))  # fmt: skip
    with app("closed"):
        server = detect(f"http://127.0.0.1:{port}")
        options = Options(Workload(concurrency=1), requests=2, duration_s=30, warmup=0, gradio_path="direct")
        refused, _ = trial(server, options)
        assert refused.outcome["errors"] == {"http-404": 2}
        assert "does not accept direct HTTP POST requests" in refused.outcome["error_words"]["http-404"]
        assert asked("call")[0]["requests"]["ok"] == 3
