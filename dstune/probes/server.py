"""Language-model servers: those that run on this machine (by command line and port), and one reached over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Evidence, Fact, Gap, parse_json
from dstune.probes.metrics import read_metrics as read_metrics
from dstune.probes.processes import Process, engine_of, every
from dstune.probes.reading import Item, Options, facts, numbered, text_of
from dstune.redact import redact

_BODY_LIMIT = 8 << 20


def probe(options: Options) -> Iterator[Item]:
    """Running servers as `server`, `server1`…; workers of a server are counted, not listed."""
    if not os.path.isdir(options.at("/proc/self")) and options.root == "/":
        yield Gap(
            "server",
            "*",
            say("/proc is not mounted", "/proc 未挂载"),
            say("mount it, or use --endpoint URL", "请挂载 /proc，或使用 --endpoint URL"),
        )
        return
    engines = {p.pid: (p, e) for p in every(options.root) if (e := engine_of(p.argv, p.link("cwd"), options.root))}
    heads = [
        (p, e) for p, e in engines.values() if p.parent not in engines and not p.argv[0].startswith(("VLLM::", "sglang::"))
    ]
    yield Fact("server", "count", len(heads), "/proc/*/cmdline")
    for number, (process, engine) in enumerate(heads):
        yield from _process(process, engine, numbered("server", number), options)


def _process(process: Process, engine: str, subject: str, options: Options) -> Iterator[Item]:
    source = f"/proc/{process.pid}"
    status = text_of(f"{process.folder}/status", 8192) or ""
    memory = next((int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS:")), None)
    children = [p.pid for p in every(options.root) if p.parent == process.pid]
    yield from facts(
        subject,
        source,
        engine=engine,
        pid=process.pid,
        command=redact(" ".join(process.argv))[:2000],
        interpreter=_link(process, "exe"),
        working_directory=_link(process, "cwd"),
        rss_mib=memory,
        ours=process.uid == os.getuid(),
        workers=len(children),
        uptime_s=_uptime(process, options),
    )
    ports = process.ports()
    for child in () if ports else children:
        ports = ports or Process(child, options.root).ports()
    stated = _stated_port(process.argv)
    if not ports and stated:
        yield Fact(subject, "port", stated, f"{source}/cmdline")
    elif ports:
        yield from facts(subject, f"{source}/net/tcp", port=ports[0][1], bind=ports[0][0], ports=[port for _, port in ports])
    else:
        reason = say(
            "no listening port can be seen (not up yet, or another user's process)",
            "看不到监听端口（尚未就绪，或属于其他用户）",
        )
        yield Gap(subject, "port", reason, "sudo ss -ltnp")


def _stated_port(argv: tuple[str, ...]) -> int | None:
    """Port in a command line: `--port 8000`, `--port=8000`, `--server.port 8501`."""
    for word, after in zip(argv, (*argv[1:], ""), strict=True):
        name, _, value = word.partition("=")
        if name in ("--port", "--server.port", "--server_port", "--http-port"):
            value = value or after
            return int(value) if value.isdigit() else None
    return None


def _link(process: Process, name: str) -> str | None:
    target = process.link(name)
    return redact(target) if target else None


def _uptime(process: Process, options: Options) -> int | None:
    stat = (text_of(f"{process.folder}/stat", 4096) or "").rpartition(")")[2].split()
    up = (text_of(options.at("/proc/uptime"), 64) or "").split()
    try:
        return max(0, int(float(up[0]) - int(stat[19]) / os.sysconf("SC_CLK_TCK")))
    except (IndexError, ValueError, OSError):
        return None


_FAILURES = ((ConnectionRefusedError, "refused"), (TimeoutError, "timeout"), (ConnectionError, "reset"))
"""Why there is no answer, in a word of `server.failure`; anything else is `other`. A subclass stands before its base."""


class _Client:
    """GET with a deadline for the whole call; proxies are never used for this machine."""

    def __init__(self, base: str, timeout_s: float) -> None:
        import urllib.request

        self.base, self.timeout_s, self.failure = base, timeout_s, ""
        host = (urlsplit(base).hostname or "").lower()
        local = host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")
        self.opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))

    def get(self, path: str) -> tuple[int, str, float] | str:
        """(status, text, milliseconds), or why there is no answer. A server that sends a byte a second is given up at twice the timeout."""
        import threading

        box: list[tuple[int, str, float] | str] = []
        self.failure = "timeout"
        worker = threading.Thread(target=lambda: box.append(self._get(path)), daemon=True)
        worker.start()
        worker.join(2 * self.timeout_s)
        seconds = f"{2 * self.timeout_s:.0f}"
        return box[0] if box else say(f"no whole answer within {seconds} s", f"{seconds} 秒内没有完整的响应")

    def _get(self, path: str) -> tuple[int, str, float] | str:
        import urllib.error

        start = time.monotonic()
        try:
            with self.opener.open(self.base + path, timeout=self.timeout_s) as answer:
                parts, size = [], 0
                while size < _BODY_LIMIT and time.monotonic() - start < self.timeout_s:
                    part = answer.read(65536)
                    if not part:
                        break
                    parts.append(part)
                    size += len(part)
                return answer.status, b"".join(parts).decode("utf-8", "replace"), 1000 * (time.monotonic() - start)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, "", 1000 * (time.monotonic() - start)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            self.failure = next((name for kind, name in _FAILURES if isinstance(why, kind)), "other")
            return str(why or type(error).__name__)
        except Exception as error:  # http.client.HTTPException: what answers is no HTTP server
            self.failure = "other"
            return f"{type(error).__name__}: {error}"


def read_endpoint(url: str, seconds: float = 0, subject: str = "server", timeout_s: float = 4.0) -> Evidence:
    """What an HTTP server says of itself: /health, /v1/models, /version, /metrics. With `seconds`, counters and latencies are
    those of a window of that length. `url` may end in /v1; without a scheme http is meant."""
    base = url if "://" in url else f"http://{url}"
    base = base.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        _ = urlsplit(base).port
    except ValueError as error:  # [::1 without its bracket, a port that is no number
        raise DstuneError(
            say(f"{base!r} is no http address", f"{base!r} 不是 http 地址"), str(error), "http://127.0.0.1:8000"
        ) from None
    return Evidence().plus(*_split(_endpoint(_Client(base, timeout_s), base, seconds, subject)))


def subject_of(evidence: Evidence, url: str) -> str:
    """Subject for the facts of an endpoint: that of the local server on its port, else the next free one."""
    address = urlsplit(url if "://" in url else f"http://{url}")
    port = address.port or (443 if address.scheme == "https" else 80)
    for fact in evidence.find("server", "ports"):
        if isinstance(fact.value, list) and port in fact.value:
            return fact.subject
    return numbered("server", sum(1 for _ in evidence.find("server", "pid")))


def _split(items: Iterator[Item]) -> tuple[list[Fact], list[Gap]]:
    """Facts and gaps; what two pages of a server tell counts as the first told it."""
    told: dict[str, Fact] = {}
    gaps: list[Gap] = []
    for item in items:
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            told.setdefault(item.name, item)
    return list(told.values()), gaps


def _endpoint(client: _Client, base: str, seconds: float, subject: str) -> Iterator[Item]:
    shown = redact(base)
    yield Fact(subject, "url", shown, "--endpoint")
    health = client.get("/health")
    yield Fact(subject, "reachable", not isinstance(health, str), f"GET {shown}/health")
    if isinstance(health, str):
        yield Fact(subject, "failure", client.failure, f"GET {shown}/health")
        hint = say(
            "is it running, and is this its host and port? `curl -v` shows more",
            "服务是否在运行、主机和端口是否正确？可用 `curl -v` 查看",
        )
        yield Gap(subject, "*", f"{shown}: {health}", hint)
        return
    status, _, took = health
    yield Fact(subject, "health_status", status, f"GET {shown}/health")
    yield Fact(subject, "health_ms", round(took, 1), f"GET {shown}/health")
    listed = client.get("/v1/models")
    yield from _models(listed, shown, subject)
    version = _object(client.get("/version")).get("version")
    yield from facts(subject, f"GET {shown}/version", version=version)
    if version is None:
        yield from _info(client, shown, subject)
    first = client.get("/metrics")
    owner = str(((_object(listed).get("data") or [{}])[0] or {}).get("owned_by", ""))
    if isinstance(first, str) or first[0] != 200:
        yield from _engine(client, shown, subject, owner)
    if isinstance(first, str) or first[0] != 200 or "# " not in first[1][:65536]:
        why = first if isinstance(first, str) else say(f"answers {first[0]}", f"返回 {first[0]}")
        hint = say(
            "start llama-server with --metrics, SGLang with --enable-metrics",
            "llama-server 需加 --metrics，SGLang 需加 --enable-metrics",
        )
        yield Gap(subject, "running", f"GET {shown}/metrics: {why}", hint)
        return
    text, before, window = first[1], "", 0.0
    if seconds > 0:
        start = time.monotonic()
        time.sleep(seconds)
        second = client.get("/metrics")
        if isinstance(second, str) or second[0] != 200:
            yield Gap(subject, "generation_tok_s", f"GET {shown}/metrics: {second if isinstance(second, str) else second[0]}")
        else:
            text, before, window = second[1], first[1], time.monotonic() - start
            yield Fact(subject, "window_s", round(window, 2), f"GET {shown}/metrics")
    yield from read_metrics(text, f"GET {shown}/metrics", subject, before, window)


def _object(answer: tuple[int, str, float] | str) -> dict[str, Any]:
    if isinstance(answer, str) or answer[0] != 200:
        return {}
    try:
        value = parse_json(answer[1])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama", "me": "llama-cpp-python"}


def _engine(client: _Client, shown: str, subject: str, owner: str) -> Iterator[Item]:
    """Engine of a server without metrics: by the owner that it names for its models, or as a Gradio app by its /config."""
    if owner in _OWNERS:
        yield Fact(subject, "engine", _OWNERS[owner], f"GET {shown}/v1/models owned_by")
        if _OWNERS[owner] == "ollama":
            yield from facts(subject, f"GET {shown}/api/version", version=_object(client.get("/api/version")).get("version"))
        return
    config = _object(client.get("/config"))
    if "components" in config and "version" in config:
        yield from facts(subject, f"GET {shown}/config", engine="gradio", version=config.get("version"))


def _models(answer: tuple[int, str, float] | str, shown: str, subject: str) -> Iterator[Item]:
    source = f"GET {shown}/v1/models"
    status = answer if isinstance(answer, str) else answer[0]
    if status in (401, 403):
        yield Fact(subject, "needs_key", True, source)
        yield Gap(subject, "models", say(f"answers {status}: it wants an API key", f"返回 {status}：需要 API key"))
        return
    listed = _object(answer).get("data")
    if not isinstance(listed, list) or not listed:
        yield Gap(subject, "models", f"{source}: " + say(f"no list of models ({status})", f"没有返回模型列表({status})"))
        return
    models = [m for m in listed if isinstance(m, dict)]
    yield Fact(subject, "models", [str(m.get("id")) for m in models], source)
    first = next((m for m in models if not m.get("parent")), models[0])
    root = first.get("root")
    said = first.get("meta")
    meta: dict[str, Any] = said if isinstance(said, dict) else {}
    yield from facts(
        subject,
        source,
        model_root=redact(str(root)) if root else None,
        max_model_len=first.get("max_model_len") or meta.get("n_ctx") or meta.get("n_ctx_train"),
        owned_by=first.get("owned_by"),
    )


def _info(client: _Client, shown: str, subject: str) -> Iterator[Item]:
    """SGLang's and llama.cpp's own descriptions; other servers answer 404."""
    sglang = _object(client.get("/get_server_info"))
    if sglang:
        internal = sglang.get("internal_states")
        state = internal[0] if isinstance(internal, list) and internal and isinstance(internal[0], dict) else sglang
        yield from facts(
            subject,
            f"GET {shown}/get_server_info",
            version=sglang.get("version"),
            max_model_len=sglang.get("context_length") or sglang.get("max_req_input_len"),
            kv_tokens=sglang.get("max_total_num_tokens") or state.get("max_total_num_tokens"),
            mem_fraction_static=sglang.get("mem_fraction_static"),
        )
        return
    props = _object(client.get("/props"))
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    yield from facts(subject, f"GET {shown}/props", slots=props.get("total_slots"), slot_context=context)
