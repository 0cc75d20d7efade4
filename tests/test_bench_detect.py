"""What answers at an address: servers without /v1/models, one that is pinned to a model, addresses with a password, proxies."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dstune.errors import DstuneError, UnobservableError
from dstune.load import gradio
from dstune.load.detect import detect
from dstune.model.plan import Trial, Workload
from dstune.report.trial import trials_text

Answers = dict[tuple[str, str], tuple[int, Any]]
"""(method, path) → (status, body)."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """Serves these answers, 404 else."""
    running = []

    def begin(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                status, made = answers.get((self.command, self.path), (404, {"detail": "Not Found"}))
                data = json.dumps(made).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield begin
    for server, thread in running:
        server.shutdown()
        thread.join(5)
        server.server_close()


CHATS = "/v1/chat/completions"
PINNED = {"detail": "Server is pinned to '/models/hf'; requested 'default'."}
OPENAPI = {"paths": {"/v1/models": {}, "/load_model": {}, CHATS: {}}}


@pytest.mark.parametrize(
    "listed", [(200, {"data": []}), (200, {"data": [{"id": "of/the-cache", "owned_by": "of"}]}), (500, "no cache folder")]
)
def test_transformers_serve_is_asked_for_the_model_that_it_is_pinned_to(
    serve: Callable[[Answers], str], listed: tuple[int, Any]
) -> None:
    """Its /v1/models lists the hub's cache, or fails where there is none: a plain `dstune bench URL` was refused 40 times."""
    url = serve(
        {
            ("GET", "/v1/models"): listed,
            ("GET", "/openapi.json"): (200, OPENAPI),
            ("POST", CHATS): (400, PINNED),
        }
    )
    found = detect(url)
    assert (found.kind, found.models) == ("transformers", ("/models/hf",))


def test_transformers_serve_without_a_pin_keeps_its_models(serve: Callable[[Answers], str]) -> None:
    url = serve({("GET", "/v1/models"): (200, {"data": [{"id": "a/b"}]}), ("GET", "/openapi.json"): (200, OPENAPI)})
    found = detect(url)
    assert (found.kind, found.models) == ("transformers", ("a/b",))


@pytest.mark.parametrize("status", [405, 422])
def test_home_made_server_without_models_is_taken(serve: Callable[[Answers], str], status: int) -> None:
    found = detect(serve({("GET", CHATS): (status, {"detail": "Method Not Allowed"})}))
    assert (found.kind, found.dialect, found.models) == ("unknown", "chat", ())


def test_whole_route_is_believed(serve: Callable[[Answers], str]) -> None:
    url = serve({})
    assert detect(f"{url}{CHATS}").base == url
    assert detect(f"{url}/v1/completions").dialect == "completions"
    with pytest.raises(UnobservableError, match="no server that dstune knows") as error:
        detect(url)
    assert CHATS in error.value.next


def test_password_in_the_address_is_not_sent_and_not_shown() -> None:
    with pytest.raises(DstuneError, match="not sent") as error:
        detect("http://ann:verysecret@127.0.0.1:9/v1")
    assert "verysecret" not in " ".join((error.value.what, error.value.why, error.value.next))
    assert "http://127.0.0.1:9/v1" in error.value.next


def test_proxy_of_the_environment_is_not_used_and_told(
    serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load uses none. A detection through one found servers that the load could not reach, or missed those of the local net."""
    proxy = serve({("GET", "http://nobody.invalid/v1/models"): (200, {"data": [{"id": "m"}]})})
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(UnobservableError) as error:
        detect("http://nobody.invalid")
    assert "not through http_proxy" in error.value.why
    with pytest.raises(UnobservableError) as error:
        detect("http://127.0.0.1:1")
    assert "proxy" not in error.value.why


def test_function_that_a_gradio_app_has_not() -> None:
    config = {"components": [], "dependencies": [{"api_name": n} for n in ("chat", "lambda_1", "_save", "chat", False)]}
    with pytest.raises(DstuneError, match="no function 'nope'") as error:
        gradio.find(config, "nope")
    assert error.value.why == "chat"
    with pytest.raises(DstuneError, match="takes a text"):
        gradio.find(config)


@pytest.mark.parametrize(("memory", "mib"), [({"peak": 3 << 30, "reserved": 4 << 30}, "3072"), ({"rss": 600 << 20}, "600")])
def test_bare_model_shows_its_memory(memory: dict[str, int], mib: str) -> None:
    figures = {
        "requests": {"ok": 1, "failed": 0}, "errors": {}, "output_tok_s": 5.0, "request_s": 1.0, "duration_s": 1.0, "output_tokens": 5,
        "tokens_counted_by": "steps", "memory": memory,
    }  # fmt: skip
    one = Trial(Workload(), {"server": "transformers (bare)", "model": "m"}, figures)
    assert f"memory: {mib} MiB at the peak" in trials_text((one,))
    table = trials_text((one, one))
    assert "memory MiB" in table
    assert table.count(f"{mib}\n") >= 1
