"""A Gradio app that knows the truth, in the dialects of 4.33, 5.49 and 6.31: queue, call API and direct route, fixed cadence, true times kept.

    python -m tests.servers.gradio --version 6.31.0 --ttft-ms 50 --itl-ms 10     prints "port N" when it listens

GET /stats?reset=1 → {"posts", "peak" (functions that ran at once), "runs" (joined, began, first value, ended; ms from when it was posted)}.
`chat` yields the answer so far, `whole` returns it. A prompt chooses its misbehaviour by the word `mock:NAME`: fail (raises after three values)
blank (the first value is empty) beat (a heartbeat before the first value) expired (the event is not known) halt (the stream ends early).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
import uuid
from typing import Any
from urllib.parse import parse_qs, urlsplit

now = time.perf_counter
DIRECT = "This API endpoint does not accept direct HTTP POST requests. Please join the queue to use this API."
BOXES = [{"id": 1, "type": "textbox", "props": {"value": ""}}, {"id": 2, "type": "state", "props": {}}]
FUNCTIONS = [
    {"id": 0, "api_name": "clear", "inputs": [], "outputs": [1], "queue": False, "backend_fn": True, "types": {"generator": False}},
    {"id": 1, "api_name": "chat", "inputs": [1, 2], "outputs": [1, 2], "queue": True, "backend_fn": True, "types": {"generator": True}},
    {"id": 2, "api_name": "whole", "inputs": [1], "outputs": [1], "queue": True, "backend_fn": True, "types": {"generator": False}},
]  # fmt: skip


class App:
    """One app: its settings, its waiting room, what really happened."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.version, self.ttft, self.itl, self.tokens = a.version, a.ttft_ms / 1e3, a.itl_ms / 1e3, a.tokens
        self.size, self.open = a.size, not a.closed
        self.major, self.minor = (int(p) for p in a.version.split(".")[:2])
        self.prefix = "/gradio_api" if self.major >= 5 else ""
        self.room = asyncio.Semaphore(a.limit)
        self.messages: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self.waiting = self.running = self.peak = 0
        self.posts: list[str] = []
        self.runs: list[dict[str, float]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def config(self) -> dict[str, Any]:
        prefix = {"api_prefix": self.prefix} if self.prefix else {}
        return {"version": self.version, "components": BOXES, "dependencies": FUNCTIONS, "protocol": "sse_v3", **prefix}

    async def values(self, function: dict[str, Any], prompt: str, run: dict[str, float], posted: float) -> Any:
        """What the function yields or returns, with the times of it."""
        self.running += 1
        self.peak = max(self.peak, self.running)
        begin = now()
        run["began"] = 1e3 * (begin - posted)
        try:
            yields = function["types"]["generator"]
            for k in range(self.tokens):
                due = begin + self.ttft + k * self.itl
                if yields or k == self.tokens - 1:
                    await asyncio.sleep(max(0.0, due - now()))
                if "mock:fail" in prompt and k == 3:
                    raise ValueError("the model broke")
                if yields or k == self.tokens - 1:
                    run.setdefault("first", 1e3 * (now() - posted))
                    text = "" if "mock:blank" in prompt and k == 0 else " the" * (k + 1)
                    yield [text, None][: len(function["outputs"])]
        finally:
            self.running -= 1
            run["ended"] = 1e3 * (now() - posted)
            self.runs.append(run)

    async def job(
        self, function: dict[str, Any], prompt: str, out: asyncio.Queue[dict[str, Any]], simple: bool, posted: float
    ) -> None:
        """One event of the queue: its messages, as Gradio sends them."""
        out.put_nowait({"msg": "estimation", "rank": self.waiting - 1, "queue_size": self.waiting})
        async with self.room:
            self.waiting -= 1
            out.put_nowait({"msg": "process_starts", "eta": None})
            if "mock:beat" in prompt:
                out.put_nowait({"msg": "heartbeat"})
            before: list[Any] = []
            try:
                async for value in self.values(function, prompt, {}, posted):
                    shown = value
                    if before and not simple:
                        shown = [[["append", [], value[0][len(before[0]) :]]], *([] for _ in value[1:])]
                    if function["types"]["generator"]:
                        out.put_nowait({"msg": "process_generating", "output": {"data": shown}, "success": True})
                    before = value
                    if "mock:halt" in prompt:
                        out.put_nowait({"msg": "close_stream"})
                        return
                done = {"msg": "process_completed", "output": {"data": before}, "success": True}
            except ValueError as error:
                done = {"msg": "process_completed", "output": {"error": str(error)}, "success": False, "title": "Error"}
            out.put_nowait(done)

    def join(self, body: dict[str, Any], function: dict[str, Any], simple: bool, posted: float) -> str:
        event = uuid.uuid4().hex
        out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        prompt = str(body["data"][0])
        if "mock:expired" not in prompt:
            self.waiting += 1
            self.messages[body.get("session_hash") or event] = out
            task = asyncio.create_task(self.job(function, prompt, out, simple, posted))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return event

    def as_call(self, message: dict[str, Any]) -> bytes | None:
        """A message as the call API tells it; None for one that it leaves out."""
        kind, output = message["msg"], message.get("output") or {}
        if kind == "heartbeat":
            return b"event: heartbeat\ndata: null\n\n"
        if kind == "unexpected_error":
            name, data = "error", message["message"]
        elif kind in ("process_generating", "process_completed"):
            good = message["success"]
            name = "error" if not good else "generating" if kind == "process_generating" else "complete"
            told = good or (self.major, self.minor) < (6, 13)  # what a function raised is told since 6.13
            data = output.get("data") if told else output
        else:
            return None
        return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()

    async def stream(self, key: str, call: bool, writer: asyncio.StreamWriter) -> bool:
        """One event stream; whether the connection is kept."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head)
        out = self.messages.get(key)
        while True:
            if out is None:  # raised inside the stream: told, then cut
                text = "404: Session not found." if (self.major, self.minor) < (5, 1) else "404: Not Found"
                message = {"msg": "unexpected_error", "message": text, "success": False}
            else:
                message = await out.get()
            if message["msg"] != "close_stream":
                block = self.as_call(message) if call else b"data: " + json.dumps(message).encode() + b"\n\n"
                if block is not None:
                    writer.write(b"%x\r\n%s\r\n" % (len(block), block))
            if out is None:
                return False
            if message["msg"] in ("process_completed", "close_stream"):
                del self.messages[key]
                writer.write(b"0\r\n\r\n")
                return True

    async def direct(self, function: dict[str, Any], prompt: str, posted: float) -> tuple[Any, str]:
        if not self.open and function["queue"]:
            return {"detail": DIRECT}, "404 Not Found"
        steps = self.values(function, prompt, {}, posted)
        try:
            data = await anext(steps)
        except ValueError as error:
            return {"error": str(error)}, "500 Internal Server Error"
        await steps.aclose()
        return {"data": data, "is_generating": function["types"]["generator"], "duration": 0.1, "render_config": None}, "200 OK"


async def talk(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection."""

    def answer(data: Any, status: str = "200 OK") -> None:
        body = json.dumps(data).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    kept = True
    try:
        while kept and (head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")):
            posted = now()
            method, path = head.split(" ", 2)[:2]
            size = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
            body = json.loads(await reader.readexactly(int(size[1]))) if size and int(size[1]) else {}
            where = urlsplit(path)
            kept = await route(
                app, method, where.path.removeprefix(app.prefix), parse_qs(where.query), body, answer, writer, posted
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def route(
    app: App, method: str, path: str, query: dict[str, list[str]], body: dict[str, Any], answer: Any, writer: Any, posted: float
) -> bool:  # fmt: skip
    """Answers one request; whether the connection is kept."""
    parts = path.strip("/").split("/")
    if path == "/config":
        answer(app.config())
    elif path == "/stats":
        answer({"posts": app.posts, "peak": app.peak, "runs": app.runs})
        if query.get("reset"):
            app.posts, app.runs, app.peak = [], [], 0
    elif method == "GET" and path == "/queue/data":
        return await app.stream(query["session_hash"][0], False, writer)
    elif method == "GET" and parts[0] == "call" and len(parts) == 3:
        return await app.stream(parts[2], True, writer)
    elif method == "POST" and (path == "/queue/join" or parts[0] in ("call", "run", "api")):
        app.posts.append(path)
        wanted = body.get("fn_index") if "fn_index" in body else parts[1]
        function = next((f for f in FUNCTIONS if wanted in (f["id"], f["api_name"])), None)
        if function is None:
            answer("Internal Server Error", "500 Internal Server Error")
        elif parts[0] in ("run", "api"):
            answer(*await app.direct(function, str(body["data"][0]), posted))
        elif app.waiting >= app.size:
            answer({"detail": f"Queue is full. Max size is {app.size} and size is {app.waiting}."}, "503 Service Unavailable")
        else:
            answer({"event_id": app.join(body, function, parts[0] == "call", posted)})
    else:
        answer({"detail": "Not Found"}, "404 Not Found")
    return True


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="6.31.0")
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--itl-ms", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--limit", type=int, default=2, help="functions at once (concurrency_limit)")
    parser.add_argument("--size", type=int, default=64, help="waiting events (max_size)")
    parser.add_argument("--closed", action="store_true", help="api_open=False")
    app = App(parser.parse_args())
    server = await asyncio.start_server(lambda r, w: talk(app, r, w), "127.0.0.1", 0)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
