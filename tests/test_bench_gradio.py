"""The three ways into a Gradio app, in the dialects of 4, 5 and 6: what each counts, what it says that it does not see, how each fails."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dstune.cli.bench_compare import compare
from dstune.errors import DstuneError
from dstune.lang import use
from dstune.load import gradio
from dstune.load.answers import Reply
from dstune.load.client import Answer
from dstune.load.detect import detect
from dstune.load.paths import FIRST_VALUE, PATHS
from dstune.load.run import Options, trial
from dstune.load.workers import trial as trial_of_many
from dstune.model.plan import Trial, Workload
from dstune.report.trial import trial_text, trials_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
VERSIONS = ("4.33.0", "5.49.1", "6.31.0")
TOKENS, TTFT, ITL = 12, 50.0, 10.0


@contextmanager
def app(version: str = "6.31.0", *more: str) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "tests.servers.gradio",
        "--version",
        version,
        "--ttft-ms",
        str(TTFT),
        "--itl-ms",
        str(ITL),
        *more,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=VERSIONS)
def each(request: pytest.FixtureRequest) -> Iterator[str]:
    with app(request.param) as url:
        yield url


@pytest.fixture(scope="module")
def six() -> Iterator[str]:
    with app() as url:
        yield url


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats?reset=1") as f:
        return dict(json.load(f))


def load(url: str, path: str, n: int = 6, c: int = 3, **more: Any) -> tuple[Trial, list[Reply]]:
    stats(url)
    options = Options(Workload(concurrency=c), requests=n, duration_s=20, warmup=0, gradio_path=path, **more)
    return trial(detect(url, gradio=True), options)


def saying(tmp_path: Path, word: str) -> str:
    file = tmp_path / "prompts.txt"
    file.write_text(f"mock:{word}\n")
    return str(file)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("path", ["queue", "call"])
def test_tokens_and_first_token_are_those_of_the_app(each: str, path: str) -> None:
    """Both ways wait for the same two places; what comes after the wait is counted alike."""
    found, replies = load(each, path)
    said, o = stats(each), found.outcome
    assert o["requests"] == {"ok": 6, "failed": 0}, o["error_words"]
    assert set(said["posts"]) == {"/queue/join" if path == "queue" else "/call/chat"}
    assert said["peak"] == 2, "both keep the concurrency limit"
    assert (o["output_tokens"], o["tokens_counted_by"]) == (6 * TOKENS, "events")
    assert o["ttft_ms"]["mean"] == pytest.approx(mean([r["first"] for r in said["runs"]]), abs=15)
    assert o["ttft_ms"]["max"] > 2 * TTFT + TOKENS * ITL - 30, "the wait is inside the first token"
    assert o["itl_ms"]["mean"] == pytest.approx(ITL, abs=1.5)
    assert o["e2e_ms"]["mean"] == pytest.approx(mean([r["ended"] for r in said["runs"]]), abs=15)
    assert {r.text for r in replies} == {" the" * TOKENS}
    assert {r.finish for r in replies} == {"stop"}


def test_only_the_queue_tells_its_wait(each: str) -> None:
    queued, _ = load(each, "queue")
    waited = mean([r["began"] for r in stats(each)["runs"]])
    assert queued.outcome["server"]["queue_ms"] == pytest.approx(waited, abs=15)
    called, _ = load(each, "call")
    assert "queue_ms" not in called.outcome.get("server", {}), "its stream has no such message"


def test_direct_call_bypasses_the_queue(each: str) -> None:
    found, replies = load(each, "direct", api_name="whole", c=6)
    said, o = stats(each), found.outcome
    assert o["requests"] == {"ok": 6, "failed": 0}, o["error_words"]
    assert set(said["posts"]) == {"/run/whole"}
    assert said["peak"] == 6, "six at once where the queue lets two"
    assert o["ttft_ms"] is None, "all comes in one piece"
    assert o["e2e_ms"]["mean"] == pytest.approx(mean([r["ended"] for r in said["runs"]]), abs=15)
    assert {r.text for r in replies} == {" the" * TOKENS}
    assert o["finish"] == {"stop": 6}
    assert "first value" not in trial_text(found)


def test_direct_call_of_a_function_that_yields_is_no_whole_answer(each: str) -> None:
    found, replies = load(each, "direct")
    assert {r.text for r in replies} == {" the"}
    assert found.outcome["finish"] == {FIRST_VALUE: 6}
    assert "! 6 answers are the first value of a function that yields" in trial_text(found)
    assert "! 6 answers are the first value of a function that yields" in " ".join(trials_text((found, found)).split())


def test_function_without_a_name(six: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct call reaches it by its number, as Gradio's own page does; the call API has no way to it."""
    from dstune.load.detect import fetch

    def nameless(url: str, *given: Any, **more: Any) -> Any:
        status, headers, body = fetch(url, *given, **more)
        return status, headers, body.replace(b'"api_name": "chat"', b'"api_name": false').replace(b'"whole"', b"false")

    monkeypatch.setattr(gradio, "fetch", nameless)
    found, _ = load(six, "direct", n=2)
    assert found.outcome["requests"]["ok"] == 2, found.outcome["error_words"]
    assert set(stats(six)["posts"]) == {"/run/predict"}
    with pytest.raises(DstuneError, match="no function with an API name"):
        load(six, "call", n=1)


def test_gradio_before_the_call_api(six: str) -> None:
    for version, known in (("4.19.2", False), ("4.20.0", True), ("", True)):
        server = replace(detect(six, gradio=True), version=version)
        options = Options(Workload(concurrency=1), requests=1, duration_s=20, warmup=0, gradio_path="call")
        if known:
            assert trial(server, options)[0].outcome["requests"]["ok"] == 1
        else:
            with pytest.raises(DstuneError, match="no call API"):
                trial(server, options)


def test_heartbeats_and_empty_values_are_no_tokens(each: str, tmp_path: Path) -> None:
    beaten, _ = load(each, "call", n=2, c=1, profile=saying(tmp_path, "beat"))
    assert beaten.outcome["output_tokens"] == 2 * TOKENS
    blank, _ = load(each, "call", n=2, c=1, profile=saying(tmp_path, "blank"))
    assert blank.outcome["output_tokens"] == 2 * (TOKENS - 1)
    assert blank.outcome["ttft_ms"]["mean"] == pytest.approx(TTFT + ITL, abs=12), "the first value with text"


@pytest.mark.parametrize("path", ["queue", "call"])
def test_function_that_raises(each: str, path: str, tmp_path: Path) -> None:
    found, _ = load(each, path, n=2, c=1, profile=saying(tmp_path, "fail"))
    assert found.outcome["errors"] == {"server-error": 2}
    told = path == "queue" or detect(each, gradio=True).version == VERSIONS[2]
    assert found.outcome["error_words"] == ({"server-error": "the model broke"} if told else {}), (
        "before 6.13 this stream does not say"
    )


def test_direct_call_of_a_function_that_raises(six: str, tmp_path: Path) -> None:
    found, _ = load(six, "direct", n=2, c=1, profile=saying(tmp_path, "fail"), api_name="whole")
    assert found.outcome["error_words"] == {"http-500": "the model broke"}


def test_event_that_has_expired(each: str, tmp_path: Path) -> None:
    """The stream says so and is cut: its words count, not the cut."""
    found, _ = load(each, "call", n=2, c=1, profile=saying(tmp_path, "expired"))
    words = "404: Session not found." if detect(each, gradio=True).version == VERSIONS[0] else "404: Not Found"
    assert found.outcome["errors"] == {"server-error": 2}
    assert found.outcome["error_words"] == {"server-error": words}


def test_stream_that_ends_before_its_end(six: str, tmp_path: Path) -> None:
    found, _ = load(six, "call", n=2, c=1, profile=saying(tmp_path, "halt"))
    assert found.outcome["errors"] == {"truncated": 2}


@pytest.mark.parametrize("path", ["queue", "call"])
def test_queue_that_is_full(path: str) -> None:
    with app("6.31.0", "--size", "1", "--limit", "1") as url:
        found, _ = load(url, path, n=6, c=6)
        assert found.outcome["errors"]["queue-full"] >= 1
        assert found.outcome["error_words"]["queue-full"].startswith("Queue is full. Max size is 1")
        straight, _ = load(url, "direct", n=6, c=6, api_name="whole")
        assert straight.outcome["requests"]["failed"] == 0, "no queue, no limit of it"


@pytest.mark.parametrize("version", VERSIONS)
def test_direct_call_that_is_refused(version: str) -> None:
    """`api_open=False`: the default on Spaces. The call API, which joins the queue, is not refused."""
    with app(version, "--closed") as url:
        found, _ = load(url, "direct", n=2, c=1)
        assert found.outcome["errors"] == {"http-404": 2}
        assert "does not accept direct HTTP POST requests" in trial_text(found)
        called, _ = load(url, "call", n=2, c=1)
        assert called.outcome["requests"] == {"ok": 2, "failed": 0}


def test_what_is_no_answer_of_the_call_api() -> None:
    def error(body: bytes, status: int = 200) -> str:
        kind = {"content-type": "text/event-stream"}
        return gradio.read_call(Answer(0, 1.0, sent=1.0, ended=2.0, status=status, headers=kind, pieces=[(2.0, body)])).error

    assert (
        error(b"<html>a page</html>")
        == error(b"event: generating\ndata: 7\n\n")
        == error(b"event: complete\ndata: {\n\n")
        == "no-json"
    )
    assert error(b'event: complete\ndata: ["", null]\n\n') == "empty"
    assert error(b'{"detail": "Queue is full."}', 503) == "queue-full"
    assert error(b'event: complete\ndata: ["Light.", null]\n\n') == ""
    direct = Answer(0, 1.0, sent=1.0, ended=2.0, status=503, pieces=[(2.0, b"busy")])
    assert gradio.read_direct(direct).error == "http-503", "a direct call has no queue that could be full"
    for body in (b"<html>", b"[]", b'{"data": "text"}', b"{}"):
        assert gradio.read_direct(replace(direct, status=200, pieces=[(2.0, body)])).error == "no-json", body


@pytest.mark.parametrize("path", PATHS)
def test_report_names_the_path_and_what_it_does_not_see(six: str, path: str) -> None:
    found, _ = load(six, path, n=2, c=1)
    assert found.settings["gradio_path"] == path
    unseen = str(found.settings["gradio_path_says"])
    assert "ot seen" in unseen
    assert " ".join(unseen.split()) in " ".join(trial_text(found).split())
    assert found.settings["stream"] is (path != "direct")
    try:
        use("zh")
        assert "看不到" in trial_text(found)
    finally:
        use("en")


def test_workers_go_the_same_way(six: str) -> None:
    stats(six)
    options = Options(Workload(concurrency=2), requests=4, duration_s=20, warmup=0, gradio_path="call")
    found = trial_of_many(detect(six, gradio=True), options, 2)
    assert found.outcome["output_tokens"] == 4 * TOKENS
    assert set(stats(six)["posts"]) == {"/call/chat"}


def test_command(six: str, run_dstune: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    files = {p: str(tmp_path / f"{p}.json") for p in ("queue", "call")}
    for path, file in files.items():
        done = run_dstune("bench", "--gradio", six, "--gradio-path", path, "-n", "3", "-c", "1", "-o", file)
        assert done.returncode == 0, done.stderr
        assert json.loads(Path(file).read_text())["trial"]["settings"]["gradio_path"] == path
    notes = " ".join(compare((files["queue"], files["call"])).notes)
    assert "--gradio-path queue / call" in notes
    for options in (("http://127.0.0.1:1", "--gradio-path", "call"), ("--local", "/tmp", "--gradio-path", "call")):
        refused = run_dstune("bench", *options)
        assert refused.returncode == 2
        assert "--gradio-path needs --gradio URL" in refused.stderr
