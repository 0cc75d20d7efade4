"""Starts the chat server.

python app.py [--config config.yaml] [--check]      --check starts nothing: is the configuration right, and is here what it names?

Ends with 2 when the configuration cannot be used here, 1 when the device failed; a signal ends it in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from chat import machine
from chat import settings as configuration

GRACE_S = 20
"""Seconds that running answers get to finish when the server is asked to stop."""
LINGER_S = 3
"""Seconds after that for connections to take what was written. Docker must wait for both (stop_grace_period in compose.yaml)."""


def main() -> int:
    """Reads the configuration, then serves until a signal ends it."""
    parser = argparse.ArgumentParser(description="Chat page and OpenAI-compatible API around one model")
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--check", action="store_true", help="look whether the configuration can be used here; start nothing")
    options = parser.parse_args()
    try:
        settings = configuration.load(options.config)
        # In a container the environment says where the model's folder is mounted, and where to listen: on all addresses there.
        path = os.path.expanduser(os.environ.get("MODEL_PATH") or settings.model.path)
        host = os.environ.get("GRADIO_SERVER_NAME") or settings.server.host
        port = os.environ.get("GRADIO_SERVER_PORT") or str(settings.server.port)
        settings = replace(settings, model=replace(settings.model, path=path))
        faults = [] if port.isdecimal() else [f"GRADIO_SERVER_PORT: must be a number, not {port!r}"]
        faults += machine.faults(settings)
        if not faults and not options.check:  # who checks may well have the server running
            faults = machine.taken(host, int(port))
        if faults:
            raise configuration.SettingsError("\n".join(faults))
        if options.check:
            print(f"{options.config} is valid")
            if lacking := machine.lacking():  # may well be checked on another machine
                print(
                    f"This Python ({sys.prefix}) lacks {', '.join(lacking)}; before the start: pip install -r requirements.txt"
                )
            return 0
        return serve(settings, host, int(port))
    except configuration.SettingsError as error:
        print(f"{options.config} cannot be used:\n{error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(
            f"The package {error.name} is not installed in {sys.prefix}; type: pip install -r requirements.txt", file=sys.stderr
        )
    return 2


def serve(settings: configuration.Settings, host: str, port: int) -> int:
    """Page, API and engine in this process. Imports torch and gradio only here, so that a wrong configuration is told at once."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    # Threads of torch on a CPU sleep when they wait. By default they spin, which halves the speed as soon as anything else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch reserves what it needs instead of blocks of 20 MiB, most of which a small model's tensors do not fill. WSL cannot.
    if "microsoft" not in platform.release().lower():
        new = tuple(int(n) for n in version("torch").split(".")[:2]) >= (2, 9)
        os.environ.setdefault("PYTORCH_ALLOC_CONF" if new else "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI

    from chat import api, model, ui
    from chat.decoder import Decoder
    from chat.engine import Engine
    from chat.trace import Trace

    # The worker thread must get Python's lock back at once when the device has a token; the default lets others keep it for 5 ms.
    sys.setswitchinterval(0.0005)
    model.longest(settings)
    tokenizer = model.tokenizer(settings)
    trace = Trace(settings.log)

    def make() -> Decoder:
        return Decoder(model.load(settings), settings.slots, settings.cache.context, settings.cache.kv_dtype == "float8")

    engine = Engine(settings, trace, make, model.end_tokens(settings, tokenizer))

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        engine.start(asyncio.get_running_loop())
        trace("server", "starting", host=settings.server.host, port=settings.server.port, slots=settings.slots)
        yield
        await asyncio.to_thread(engine.close, GRACE_S)
        trace("server", "stopped")

    app = FastAPI(title=settings.page.title, lifespan=life)
    api.add_routes(app, settings, engine, tokenizer)
    app = gr.mount_gradio_app(app, ui.build(settings, engine, tokenizer), path="")
    pages = app.routes[-1].app  # type: ignore[attr-defined]

    class Server(uvicorn.Server):
        """Ends in order: answers that run, then the line that every open page holds (uvicorn would wait for these), then the rest."""

        async def shutdown(self, sockets: Any = None) -> None:
            await asyncio.to_thread(engine.close, GRACE_S)
            pages.stop_event.set()
            await super().shutdown(sockets)

    server = Server(uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=LINGER_S))
    engine.stop = lambda: setattr(server, "should_exit", True)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn passes the signal on once it has ended in order
        server.run()
    if isinstance(engine.error, configuration.SettingsError):
        raise engine.error
    return 1 if engine.failed else 0


if __name__ == "__main__":
    sys.exit(main())
