"""One report, every format: text of 80 columns, frozen JSON, Markdown; and the server's own words read out."""

import json
from pathlib import Path

import pytest

from dstune import lang
from dstune.model import Cite, Diagnosis, Evidence, Fact, Finding, Fix, Report, Unknown
from dstune.report import FORMATS
from dstune.report.text import cells, wrap

FIX = Fix(
    {"en": "Do it", "zh": "这样做"}, "flag", "restart", set={"vllm.max_num_seqs": "64"}, run="vllm serve m --max-num-seqs 64"
)
ROOT_CAUSE = Finding(
    "root-cause", "server", "error", "high", "It broke: " + "a long message " * 12, "Because of the reason.",
    (Cite("/home/liwei/server.log", 12, "token=hf_abcdefghijklmnop " + "x" * 200),), (FIX,), "It works.",
)  # fmt: skip
LATER = Finding(
    "later", "server", "error", "medium", "It fell over.", "", (Cite("server.log", 99, "gone"),), because="root-cause"
)
REPORT = Report(
    "doctor", "0.1.0", Evidence((Fact("vllm", "kv_tokens", 46592, "server.log", 50), Fact("vllm", "dtype", "bfloat16", "server.log", 20))),
    Diagnosis((ROOT_CAUSE, LATER), (Unknown("open-cause", "the whole log"),), 200),
)  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh"])
def test_text_fits_eighty_columns_and_leaks_nothing(language: str) -> None:
    lang.use(language)
    text = FORMATS["text"](REPORT)
    assert max(map(cells, text.splitlines())) <= 80
    assert "liwei" not in text
    assert "hf_abc" not in text
    assert "\x1b" not in text
    assert "root-cause" in text
    assert "later" in text
    assert "max_num_seqs = 64" in text
    assert "46,592" in text
    assert "open-cause" in text


def test_an_uncertain_cause_names_its_proof_and_is_not_listed_again() -> None:
    lang.use("en")
    unknown = (Unknown("root-cause", "the card's name"), Unknown("open-cause", "the whole log"))
    text = FORMATS["text"](Report("doctor", "0.1.0", diagnosis=Diagnosis((ROOT_CAUSE, LATER), unknown, 9)))
    assert "to be sure: the card's name" in text
    assert "- root-cause" not in text
    assert "1 cause, 1 consequence, 1 undecided" in text


def test_doctor_names_the_command_that_shows_the_changes(run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    launch = tmp_path / "launch.sh"
    launch.write_text("vllm serve org/m --dtype half --quantization awq --enforce-eager\n")
    assert f"next: dstune fix {launch}" in run_dstune("doctor", "--no-host", str(launch)).stdout.replace("\n", " ")
    assert "next:" not in run_dstune("doctor", "--no-host", "-", stdin="No available memory for the cache blocks\n").stdout


def test_json_is_the_frozen_shape() -> None:
    data = json.loads(FORMATS["json"](REPORT))
    assert data["schema"] == "dstune.report/1"
    assert [f["cause"] for f in data["findings"]] == ["root-cause", "later"]
    first = data["findings"][0]
    assert set(first) == {"cause", "severity", "confidence", "message", "why", "evidence", "fixes", "verify", "because"}
    assert first["evidence"][0]["line"] == 12
    assert "hf_abc" not in first["evidence"][0]["text"]
    assert first["fixes"][0]["set"] == {"vllm.max_num_seqs": "64"}
    assert data["findings"][1]["because"] == "root-cause"
    assert data["unknown"] == [{"cause": "open-cause", "needs": "the whole log"}]
    assert {r["name"]: r["value"] for r in data["read"]} == {"kv_tokens": 46592, "dtype": "bfloat16"}


def test_markdown() -> None:
    text = FORMATS["markdown"](REPORT)
    assert "### `root-cause` — error, high" in text
    assert "because of `root-cause`" in text
    assert "liwei" not in text


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("one two three four five six", 10),
        ("显存不足，请减小批大小或缩短上下文。", 12),
        ("mixed 中文 and English 文字 again", 11),
        ("受限于（显存）带宽，“注意”：（abc）算力", 7),
        ("受限于（显存）带宽，“注意”：（abc）算力", 8),
    ],
)
def test_wrap_keeps_the_width_and_the_words(text: str, width: int) -> None:
    lines = wrap(text, "", width).split("\n")
    assert all(cells(line) <= width + 2 for line in lines), "closing punctuation may hang over by one character"
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line.startswith(("，", "。", "）", "”")) for line in lines)
    assert not any(line.endswith(("（", "“")) for line in lines)


def test_nothing_found_says_so() -> None:
    text = FORMATS["text"](Report("doctor", "0.1.0", diagnosis=Diagnosis((), (), 230)))
    assert "No fault found" in text
    assert "230 rules quiet" in text


def test_a_running_server_without_a_fault_says_its_queue_and_cache() -> None:
    metrics = "GET http://127.0.0.1:8000/metrics: x"
    facts = (
        Fact("server", "url", "http://127.0.0.1:8000", "--endpoint"),
        *(Fact("server", name, value, metrics) for name, value in (("running", 2), ("waiting", 3), ("kv_usage_pct", 41.5))),
    )
    text = FORMATS["text"](Report("doctor", "0.1.0", evidence=Evidence(facts), diagnosis=Diagnosis((), (), 230)))
    assert "as read in http://127.0.0.1:8000:" in text
    assert "running 2 · waiting 3 · kv_usage_pct 41.5" in text
    host = Evidence((Fact("server", "count", 1, "/proc/*/cmdline"),))
    assert "count" not in FORMATS["text"](Report("doctor", "0.1.0", evidence=host, diagnosis=Diagnosis((), (), 230)))


def test_startup_lines_are_read_out(run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 12-01 10:00:00 llm_engine.py:234] Initializing an LLM engine (v0.6.6.post1) with config: model='m', dtype=torch.float16, max_seq_len=4096, "
        "quantization=None, enforce_eager=False\n"
        "INFO 12-01 10:00:20 distributed_gpu_executor.py:57] # GPU blocks: 27392, # CPU blocks: 9362\n"
        "INFO 12-01 10:00:20 distributed_gpu_executor.py:61] Maximum concurrency for 4096 tokens per request: 107.00x\n"
    )
    done = run_dstune("doctor", "--no-host", str(log))
    assert done.returncode == 0, done.stdout
    for word in ("0.6.6", "float16", "27,392", "107", "4,096"):
        assert word in done.stdout


def test_formulas_and_parts_are_said_in_chinese_too() -> None:
    from dstune.plan.words import part_name, stated, worked

    lang.use("en")
    assert worked("2 B x 512 tokens") == "2 B x 512 tokens"
    assert (part_name("KV cache"), stated("rest of the budget")) == ("KV cache", "rest of the budget")
    lang.use("zh")
    assert worked("19,664 blocks x 16 tokens x 28,672 B") == "19,664 块 × 16 token × 28,672 B"
    assert worked("measured constant, outside vLLM's budget") == "实测常数，在 vLLM 的预算之外"
    assert worked("233,373,696 x 16 bit, / 2 GPUs") == "233,373,696 × 16 位, / 2 张卡"
    assert stated("a data sheet") == "a data sheet"


@pytest.mark.parametrize("engine", ["vllm", "transformers", "llama.cpp", "sglang"])
def test_estimate_explain_has_no_english_formula_in_chinese(engine: str, run_dstune) -> None:  # type: ignore[no-untyped-def]
    import re

    text = run_dstune("estimate", "--gpu", "4090", "--engine", engine, "--explain", "--lang", "zh").stdout
    formulas = [line.split("=", 1)[1] for line in text.splitlines() if line.startswith("      = ")]
    assert len(formulas) > 3
    known = {"B", "kB", "token", "ubatch", "vLLM", "flash", "CUDA", "logits", "float", "V", "MiB"}
    assert not [f for f in formulas if set(re.findall(r"[A-Za-z]+", f)) - known]


def test_a_comment_among_the_commands_has_no_prompt() -> None:
    from dstune.report.text import commands, titled

    fix = Fix({"en": "Do it", "zh": "这样做"}, "flag", "display", run="\nvllm serve m\n# compose:\n#   shm_size: 8gb\n")
    assert commands(fix) == ["$ vllm serve m", "# compose:", "#   shm_size: 8gb"]
    for line in (
        "MAX_JOBS=4 pip install x",
        'A="-D B=1" cmake -B b',
        "until curl -sf u; do sleep 2; done",
        "~/v/bin/pip list",
        "nvcc --version; ls",
    ):
        assert commands(Fix({}, "code", "display", run=line)) == [f"$ {line}"]
    for text in (  # of a program, a compose file, an image, a proxy: nothing for a shell
        'client = OpenAI(base_url="u")', "for piece in streamer:\n    text += piece", "networks:\n  llm: {}", "RUN pip install x",
        "location / {\n    proxy_buffering off;\n}", "proxy_read_timeout 600s;", "[wsl2]\nmemory=48GB", 'SYSTEM """two\nlines."""', "del model",
    ):  # fmt: skip
        assert commands(Fix({}, "code", "display", run=text)) == text.splitlines()
    curl = "curl URL \\\n  -d '{}'"
    assert commands(Fix({}, "code", "display", run=curl)) == ["$ curl URL \\", "  -d '{}'"]
    lang.use("zh")
    assert titled(fix) == "这样做（需手动处理）"
    lang.use("en")
    assert titled(fix) == "Do it (by hand)"


def test_the_list_of_causes_fits_a_terminal_and_is_a_line_each_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from dstune.catalog.rules import rules
    from dstune.cli.explain import command

    command.main([], standalone_mode=False)
    assert len(capsys.readouterr().out.splitlines()) == len(rules())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    command.main([], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [r.cause for r in rules().values()]
