"""What answers at a URL: which server, which models, which route. A few bounded requests before the load."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from dstune.errors import DstuneError, UnobservableError
from dstune.lang import say
from dstune.model import parse_json

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
"""Hosts that are this machine: 0.0.0.0 is what servers print that listen everywhere."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it presents itself. `base` ends before `/v1`; `dialect` is chat, completions or gradio."""

    kind: str
    base: str
    models: tuple[str, ...] = ()
    version: str = ""
    dialect: str = "chat"
    metrics: bool = False
    detail: dict[str, Any] | None = None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, to another host or scheme without the key."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and not same_place(req.full_url, newurl):
            made.remove_header("Authorization")
        return made


def same_place(asked: str, final: str) -> bool:
    """Whether a key that was meant for one address may go to the other: the same host and port, or the same host from http to https."""
    a, b = urlsplit(asked), urlsplit(final)
    return a.hostname == b.hostname and (a.scheme, b.scheme) != ("https", "http") and (a.port == b.port or b.scheme != a.scheme)


def fetch(
    url: str, headers: dict[str, str] | None = None, timeout_s: float = 5.0, verify_tls: bool = True, data: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    """(status, lower-case headers, body up to 4 MB). Follows redirects; uses no proxy, as the load uses none: it would measure the proxy.
    With `data` a POST of JSON. Raises `UnobservableError`.

    The whole call ends after twice the timeout, as a server may send a byte a second.
    """
    box: list[tuple[int, dict[str, str], bytes] | BaseException] = []

    def work() -> None:
        try:
            box.append(_fetch(url, headers, timeout_s, verify_tls, data))
        except BaseException as error:  # handed over
            box.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(2 * timeout_s)
    if not box:
        raise _silent(url, say(f"no whole answer within {2 * timeout_s:.0f} s", f"{2 * timeout_s:.0f} 秒内没有完整的响应"))
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def _silent(url: str, reason: str) -> UnobservableError:
    parts = urlsplit(url)
    return UnobservableError(
        say(f"{url} does not answer", f"{url} 没有响应"),
        reason,
        f"dstune doctor --endpoint {parts._replace(path='', query='').geturl()}",
    )


def _fetch(
    url: str, headers: dict[str, str] | None, timeout_s: float, verify_tls: bool, data: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    handlers: list[Any] = [_Redirects(), urllib.request.ProxyHandler({})]
    if not verify_tls:
        handlers.append(urllib.request.HTTPSHandler(context=ssl._create_unverified_context()))
    opener = urllib.request.build_opener(*handlers)
    kind = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data, {**kind, **(headers or {})})
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return (
                answer.status,
                {k.lower(): v for k, v in answer.headers.items()} | {"x-final-url": answer.url},
                answer.read(4 << 20),
            )
    except urllib.error.HTTPError as error:
        return (
            error.code,
            {k.lower(): v for k, v in (error.headers or {}).items()} | {"x-final-url": error.url or url},
            error.read(1 << 20),
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UnobservableError(
                say(f"the TLS certificate of {url} is not trusted", f"{url} 的 TLS 证书不受信任"),
                reason.verify_message,
                say("--insecure accepts any certificate", "--insecure 接受任何证书"),
            ) from None
        refused = isinstance(reason, ConnectionRefusedError)
        why = say("nothing listens there", "该端口没有服务在监听") if refused else str(reason)[:200]
        raise _silent(url, why + _without_proxy(url)) from None


def _without_proxy(url: str) -> str:
    """That a proxy of the environment was not used, where other programs would have used it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOOPBACK or parts.scheme not in urllib.request.getproxies() or urllib.request.proxy_bypass(host):
        return ""
    name = f"{parts.scheme}_proxy"
    return say(f" (asked directly, not through {name})", f"（直接连接，未经过 {name}）")


def detect(url: str, headers: dict[str, str] | None = None, gradio: bool = False, verify_tls: bool = True) -> Server:
    """The server at a base URL, with or without `/v1` or a whole route. Raises `UnobservableError` where nothing answers.

    One that has both a Gradio page and an OpenAI-compatible API is asked through the API, or with `gradio` as a Gradio app.
    """
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # [::1 without its bracket, a port that is no number
        usable = False
    if not usable:
        raise DstuneError(
            say(f"{url!r} is no http address", f"{url!r} 不是 http 地址"), "", "dstune bench http://127.0.0.1:8000"
        )
    if parts.username or parts.password:
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise DstuneError(
            say("a user and password in the address are not sent", "不会发送地址中的用户名和密码"),
            say("only an API key is", "只支持 API key"),
            f"dstune bench {plain} --api-key-file FILE",
        )
    path = parts.path.rstrip("/")
    whole = path.endswith("/completions")
    dialect = "completions" if path.endswith("/completions") and not path.endswith("/chat/completions") else "chat"
    for tail in ("/chat/completions", "/completions", "/models", "/v1"):
        path = path.removesuffix(tail)
    base = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    status, answer_headers, body = fetch(f"{base}/v1/models", headers, verify_tls=verify_tls)
    final = answer_headers.get("x-final-url", "")
    if final.endswith("/v1/models"):
        if headers and not same_place(base, final):
            raise UnobservableError(
                say(f"{base} redirects to another address", f"{base} 重定向到另一个地址"),
                say(f"the API key is not sent on to {final}", f"不会把 API key 转发给 {final}"),
                f"dstune bench {final.removesuffix('/v1/models')}",
            )
        base = final.removesuffix("/v1/models")
    models, owner = _models(status, body)
    kind, version, metrics = _kind(base, headers, owner, verify_tls)
    if gradio and kind != "gradio":
        kind, version = _gradio(base, headers, verify_tls)
    if gradio or (kind == "gradio" and not models):
        return Server("gradio", base, (), version, "gradio")
    if status in (401, 403):
        raise UnobservableError(
            say(f"{base} wants an API key (HTTP {status})", f"{base} 需要 API key（HTTP {status}）"),
            "",
            "OPENAI_API_KEY=… dstune bench …, or --api-key-file FILE",
        )
    if kind == "unknown" and status == 404 and not (whole or _takes_chats(base, headers, verify_tls)):
        raise UnobservableError(
            say(f"{base} answers, but is no server that dstune knows", f"{base} 有响应，但不是 dstune 认识的服务"),
            say(f"/v1/models gives HTTP {status}", f"/v1/models 返回 HTTP {status}"),
            say(
                "give the base address of an OpenAI-compatible server or its whole route (…/v1/chat/completions), or --gradio URL",
                "给出 OpenAI 兼容服务的基础地址或完整路由（…/v1/chat/completions），或用 --gradio URL",
            ),
        )
    if kind == "transformers":
        models = _pinned(base, headers, models, verify_tls) or models
    return Server(kind, base, models, version, dialect, metrics)


def _takes_chats(base: str, headers: dict[str, str] | None, verify_tls: bool) -> bool:
    """Whether a home-made server without /v1/models has the route all the same: it takes POST alone, or misses the body."""
    return _quiet(f"{base}/v1/chat/completions", headers, verify_tls)[0] in (400, 405, 415, 422)


def _pinned(base: str, headers: dict[str, str] | None, models: tuple[str, ...], verify_tls: bool) -> tuple[str, ...]:
    """The one model that `transformers serve MODEL` answers for. Its /v1/models lists what the hub's cache holds, which need not hold it;
    a request for another one is refused with its name."""
    asked = {"model": models[0] if models else "default", "max_tokens": 1, "messages": [{"role": "user", "content": "1"}]}
    try:
        _, _, body = fetch(f"{base}/v1/chat/completions", headers, 5.0, verify_tls, json.dumps(asked).encode())
    except UnobservableError:
        return ()
    found = re.search(r"pinned to '([^']+)'", body[:2000].decode("utf-8", "replace"))
    return (found[1],) if found else ()


def _gradio(base: str, headers: dict[str, str] | None, verify_tls: bool = True) -> tuple[str, str]:
    """("gradio", its version). Raises `UnobservableError` where there is no Gradio app."""
    status, _, body = _quiet(f"{base}/config", headers, verify_tls)
    try:
        data = parse_json(body) if status == 200 else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or "dependencies" not in data:
        raise UnobservableError(
            say(f"{base} is no Gradio app", f"{base} 不是 Gradio 应用"),
            say(f"/config gives HTTP {status}", f"/config 返回 HTTP {status}"),
            f"dstune bench {base}",
        )
    return "gradio", str(data.get("version") or "")


def _models(status: int, body: bytes) -> tuple[tuple[str, ...], str]:
    try:
        data = parse_json(body).get("data") or []
        return tuple(str(m["id"]) for m in data), str(data[0].get("owned_by", "")) if data else ""
    except (ValueError, AttributeError, KeyError, TypeError):
        return (), ""


_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "me": "llama-cpp-python",
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "lmdeploy": "lmdeploy",
}
_ROUTES = (
    ("/config", "gradio", "dependencies"), ("/get_server_info", "sglang", ""), ("/version", "vllm", "version"), ("/props", "llama.cpp", ""),
    ("/info", "tgi", "model_id"), ("/api/version", "ollama", "version"),
)  # fmt: skip
"""Route, server, and a key that its answer must have: Gradio 4 has an /info of its own."""


def _kind(base: str, headers: dict[str, str] | None, owner: str, verify_tls: bool = True) -> tuple[str, str, bool]:
    """(kind, version, has /metrics): by the owner in /v1/models, by /metrics' prefix, then by a route that only one server has."""
    kind, version = _OWNERS.get(owner, ""), ""
    status, _, body = _quiet(f"{base}/metrics", headers, verify_tls)
    text = body[:200_000].decode("utf-8", "replace") if status == 200 else ""
    for mark, name in (
        ("vllm:", "vllm"), ("sglang:", "sglang"), ("llamacpp:", "llama.cpp"), ("tgi_", "tgi"), ("\nchat_requests_running", "dstune-app"),
    ):  # fmt: skip
        if mark in text:
            kind = kind or name
    for route, name, key in _ROUTES:
        if kind and kind != name:
            continue
        status, _, body = _quiet(f"{base}{route}", headers, verify_tls)
        if status != 200:
            continue
        try:
            data = parse_json(body)
        except ValueError:
            continue
        if not isinstance(data, dict) or (key and key not in data):
            continue
        kind = kind or name
        version = str(data.get("version") or data.get("build_info") or "")
        break
    if not kind:
        _, _, body = _quiet(f"{base}/openapi.json", headers, verify_tls)
        kind = "transformers" if b'"/load_model"' in body else ""
    return kind or "unknown", version, bool(text.strip())


def _quiet(url: str, headers: dict[str, str] | None, verify_tls: bool = True) -> tuple[int, dict[str, str], bytes]:
    try:
        return fetch(url, headers, 3.0, verify_tls)
    except UnobservableError:
        return 0, {}, b""


def api_key(file: str | None) -> str:
    """The key from a file, else from DSTUNE_API_KEY or OPENAI_API_KEY, else "". Never reported. Raises `DstuneError` for what can be no key."""
    advice = say("a file that holds nothing but the key", "只含密钥的文件")
    found = os.environ.get("DSTUNE_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""
    if file:
        try:
            with open(file, encoding="utf-8") as f:
                found = f.read()
        except OSError as error:
            raise DstuneError(f"{file}: {error.strerror}", "", advice) from None
        except UnicodeDecodeError:
            found = "\0"
    found = found.strip()
    if not (found.isascii() and found.isprintable()):  # it goes into a header: a line break would begin another one
        raise DstuneError(
            say(f"{file or 'OPENAI_API_KEY'} holds no API key", f"{file or 'OPENAI_API_KEY'} 中不是 API key"),
            say("more than one line, or characters that no key has", "不止一行，或含有密钥中不会出现的字符"),
            advice,
        )
    return found
