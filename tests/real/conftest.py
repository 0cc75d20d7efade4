"""Real servers, each started once for all tests that ask for it. `.ci/real.sh` builds what they need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import servers
from tests.real.servers import Server, free_port, serve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are `real`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers' output goes. Fails where the servers were not built."""
    missing = [
        n for n in ("vllm", "llamacpp", "gradio6", "gradio4", "app", "smollm2") if not (servers.CACHE / f"{n}.key").is_file()
    ]
    if missing:
        pytest.fail(f"not built: {', '.join(missing)}: run .ci/real.sh first", pytrace=False)
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def vllm(logs: Path) -> Iterator[Server]:
    """vLLM's CPU build with the small model; 8 sequences at once, so that a queue can form."""
    port = free_port()
    with serve(servers.vllm(port, "--max-num-seqs", "8"), port, "/health", logs / "vllm.log", servers.VLLM_ENV) as server:
        yield server


@pytest.fixture(scope="session")
def transformers(logs: Path) -> Iterator[Server]:
    """`transformers serve`."""
    port = free_port()
    with serve(servers.transformers(port), port, "/health", logs / "transformers.log") as server:
        yield server


@pytest.fixture(scope="session")
def llamacpp(logs: Path) -> Iterator[Server]:
    """llama.cpp through llama-cpp-python's server."""
    port = free_port()
    with serve(servers.llamacpp(port), port, "/v1/models", logs / "llamacpp.log") as server:
        yield server


@pytest.fixture(scope="session")
def gradio6(logs: Path) -> Iterator[Server]:
    """A Gradio 6 chat app that streams."""
    port = free_port()
    with serve(
        servers.gradio("gradio6", port), port, "/config", logs / "gradio6.log", {"CHAT_TRUTH": str(logs / "gradio6.truth")}
    ) as server:
        yield server


@pytest.fixture(scope="session")
def gradio4(logs: Path) -> Iterator[Server]:
    """The same app on Gradio 4.33 with the packages of its day."""
    port = free_port()
    with serve(
        servers.gradio("gradio4", port), port, "/config", logs / "gradio4.log", {"CHAT_TRUTH": str(logs / "gradio4.truth")}
    ) as server:
        yield server
