"""Doctor is not sure of what is not there: healthy evidence, texts that talk about errors, evidence that fits several causes.

tests/quiet/{servers,system,talk,files}.yaml hold evidence without a fault, ambiguous.yaml what does not settle a cause. What each may give was
written down before doctor saw it: `allow` names causes that are true of a healthy text, `sure` the cause that an ambiguous one does settle.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dstune.catalog.rules import rules
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Document
from dstune.readers import read_document, read_files

HERE = Path(__file__).parent
HEALTHY = ("servers", "system", "talk", "files")


@cache
def pieces(*names: str) -> dict[str, dict[str, Any]]:
    """The pieces of these files by id."""
    found = {}
    for name in names:
        for piece in YAML(typ="safe").load(HERE / "quiet" / f"{name}.yaml"):
            assert piece["id"] not in found, f"two pieces are called {piece['id']}"
            found[piece["id"]] = piece
    return found


def doctor(piece: dict[str, Any], folder: Path) -> Diagnosis:
    """What `dstune doctor --no-host FILE` judges."""
    path = folder / piece.get("name", "server.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(piece["text"], encoding="utf-8")
    return diagnose(derive(read_files([str(path)])[0]))


@pytest.mark.parametrize("name", sorted(pieces(*HEALTHY)))
def test_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    piece = pieces(*HEALTHY)[name]
    found = doctor(piece, tmp_path).findings
    assert not [
        (f.cause, f.severity, f.confidence) for f in found if f.severity != "info" and f.cause not in piece.get("allow", ())
    ]


@pytest.mark.parametrize("name", sorted(pieces("ambiguous")))
def test_nobody_can_be_sure(name: str, tmp_path: Path) -> None:
    piece = pieces("ambiguous")[name]
    found = doctor(piece, tmp_path).findings
    sure = [f.cause for f in found if f.severity != "info" and f.confidence == "high" and not f.because]
    assert not set(sure) - {piece.get("sure")}


def test_causes_that_are_allowed_exist() -> None:
    named = {c for p in pieces(*HEALTHY, "ambiguous").values() for c in (*p.get("allow", ()), p.get("sure")) if c}
    assert named <= set(rules())


def test_there_are_enough() -> None:
    assert len(pieces(*HEALTHY)) >= 40
    assert len(pieces("ambiguous")) >= 25


OWN = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
OWN_WORDS = {
    "below a question": f"User: hello\n{OWN}\n",
    "as the answer": f"User: hello\nAssistant: {OWN}\n",
    "as the answer of a page": f'{{"question": "hello", "answer": "{OWN}"}}',
    "before another prompt ends": f"<|im_start|>user\nhello\n{OWN}\n<|im_start|>user\nhello<|im_end|>\n",
    "in a cut prompt": f"[INST] hello\n{OWN}\n[INST] hello [/INST]\n",
    "now": f"Yesterday I got a 502, now {OWN}\n",
    "since yesterday": f"Since yesterday I got this: {OWN}\n",
    "not before": f"之前没有遇到过，今天启动报 {OWN}\n",
    "of a report": f"I got this error when starting the server: {OWN}\n",
}


@pytest.mark.parametrize("where", OWN_WORDS)
def test_what_befell_the_program_itself_stays(where: str) -> None:
    assert causes(OWN) <= causes(OWN_WORDS[where])


LOGGED = [
    (rule.cause, example.texts["log"])
    for rule in rules().values()
    for example in rule.examples
    if example.expect == "fires" and set(example.texts) == {"log"}
]
FILLER = (HERE / "logs/healthy/vllm-0.32-cpu-startup-and-load.log").read_text(encoding="utf-8").split("\n")


def causes(text: str) -> set[str]:
    """Causes that doctor sees in a log."""
    return {f.cause for f in diagnose(derive(read_document(Document("server.log", "log", text)))).findings}


FORMS = {
    "vllm": "INFO 05-14 17:50:01 [logger.py:42] Received request chatcmpl-0: prompt: {!r}, params: SamplingParams(n=1, max_tokens=64), lora_request: None.",
    "sglang": "[2025-03-03 17:53:04] Receive: obj=GenerateReqInput(text={!r}, sampling_params={{'max_new_tokens': 64}}, rid='ced0')",
    "lmdeploy": "2024-08-05 05:43:10,003 - lmdeploy - INFO - session_id=1, prompt={!r}, gen_config=GenerationConfig(n=1), adapter_name=None.",
    "parts": "DEBUG:app:{{'role': 'user', 'content': [{{'type': 'text', 'text': {!r}}}]}}",
    "printed": "{!s}",
    "body": 'INFO proxy: POST /completion {{"n_predict": 64, "prompt": {!s}, "stream": true}}',
    "content first": 'DEBUG app: {{"messages": [{{"content": {!s}, "role": "user"}}], "model": "qwen"}}',
    "class": "INFO:chat:messages=[ChatMessage(role='user', content={!r})]",
    "openai": "DEBUG:openai._base_client:Request options: {{'method': 'post', 'json_data': {{'messages': [{{'role': 'user', 'content': {!r}}}]}}}}",
}


@pytest.mark.parametrize("form", FORMS)
def test_an_error_in_a_logged_prompt_is_not_the_servers(form: str) -> None:
    """What every recipe fires on, asked by a user of a server that logs its prompts."""
    asked = [f"<|im_start|>user\nWhat is wrong here?\n{log}<|im_end|>\n<|im_start|>assistant\n" for _, log in LOGGED]
    if form in ("body", "content first"):
        asked = [json.dumps(said) for said in asked]
    elif form == "printed":
        asked = [said for said in asked if said.count("<|im_") == 3]
    plain, full = (
        causes("\n".join([*FILLER[:20], *map(FORMS[form].format, said), *FILLER[-20:]])) for said in (('"Hello"',), asked)
    )
    assert full == plain


TOLD = [name for name, piece in pieces("talk").items() if not piece.get("name", "").endswith((".md", ".rst"))]


@pytest.mark.parametrize("name", TOLD)
def test_the_same_log_may_have_an_error_of_its_own(name: str) -> None:
    own = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    text = pieces("talk")[name]["text"]
    assert causes(own) <= causes(f"{own}\n{text}")
    assert causes(own) <= causes(f"{text}{own}\n")


@pytest.mark.slow
def test_the_same_errors_between_lines_of_another_server_are_seen() -> None:
    """Beside 200 healthy lines each is found that is found alone."""
    lines = (FILLER * 4)[:200]
    other = (HERE / "logs/healthy/llamacpp-server-startup.log").read_text(encoding="utf-8").split("\n") * 4
    lost = []
    for cause, log in LOGGED:
        around = lines if "llama" in log or "ggml" in log else other[:200]
        if cause in causes(log) and cause not in causes("\n".join([*around[:100], log, *around[100:]])):
            lost.append((cause, log))
    assert not lost


def test_what_a_start_followed_is_over_unless_it_goes_on() -> None:
    refused = "curl: (7) Failed to connect to vllm port 8000 after 0 ms: Connection refused"
    up = "INFO:     Application startup complete."

    def told(lines: list[str]) -> list[tuple[str, str]]:
        found = diagnose(derive(read_document(Document("server.log", "log", "\n".join(lines))))).findings
        return [(f.severity, f.confidence) for f in found if f.cause == "server-not-running"]

    assert told([refused, refused, up]) == [("info", "low")]
    assert told([up, refused]) == [("error", "medium")]
    assert told([refused, up, refused]) == [("error", "medium")]
    assert told([*[refused] * 30, up]) == [("error", "medium")]


@pytest.mark.parametrize("name", ["news_server.log", "history.log", "faq-bot.err", "changes.txt"])
def test_a_log_that_is_called_like_a_document_is_read(name: str, tmp_path: Path) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB.\n"
    assert doctor({"name": name, "text": text}, tmp_path).findings


def test_lines_that_begin_with_the_id_of_a_request_are_no_commits() -> None:
    lines = (
        "f3a9c12b INFO loading the model",
        "f3a9c12b ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB.",
    )
    assert causes("\n".join(lines)) == causes("\n".join(x[9:] for x in lines)) != set()
