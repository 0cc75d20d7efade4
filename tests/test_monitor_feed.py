"""What feeds the monitor: live watches, recordings, the state that holds minutes. Real files and processes, the stand-in NVML library."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstune.errors import DstuneError
from dstune.model import Evidence, Fact, Gap
from dstune.probes import nvidia_watch
from dstune.probes.nvidia_watch import GpuWatch, Names, holds_gpu
from dstune.probes.server_watch import Reading
from dstune.tui import draw, follow, load, logs, sampling, split
from dstune.tui.feed import CannedFeed, shares
from dstune.tui.overview import overview
from dstune.tui.replay import Recorder, ReplayFeed
from dstune.tui.state import KEEP, State
from tests import monitor_samples as canned

HERE = Path(__file__).parent


def wait(seen: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, "never seen"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.fail("these tests need gcc: it builds the stand-in NVML library")
    folder = tmp_path_factory.mktemp("nvml")
    target = str(folder / "libnvidia-ml.so.1")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", target]
    subprocess.run([*command, HERE / "fakenvml" / "fakenvml.c"], check=True)
    return folder


@pytest.fixture
def snapshot(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`snapshot("t4")`: NVML answers from a copy of this file, which the test may change."""

    def use(name: str) -> Path:
        target = tmp_path / "board.ini"
        target.write_text((HERE / "fakenvml" / f"{name}.ini").read_text())
        monkeypatch.setenv("FAKENVML", str(target))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        return target

    return use


@pytest.fixture
def watch() -> Iterator[Callable[..., GpuWatch]]:
    made: list[GpuWatch] = []

    def start(interval: float = 0.1) -> GpuWatch:
        made.append(GpuWatch(interval))
        return made[-1]

    yield start
    for one in made:
        one.close()


def value(items: list[Fact | Gap], subject: str, name: str) -> object:
    return next((i.value for i in items if isinstance(i, Fact) and (i.subject, i.name) == (subject, name)), None)


def test_cards_are_watched_and_a_lost_one_is_seen(snapshot: Callable[..., Path], watch: Callable[..., GpuWatch]) -> None:
    board = snapshot("eight-h100")
    gpus = watch()
    wait(lambda: value(gpus.latest(), "gpu7", "temperature_c") is not None)
    items = gpus.latest()
    assert value(items, "gpu0", "clock_event_reasons") == ["sw_power_cap"]
    assert len({i.subject for i in items if i.subject.startswith("process")}) == 30
    board.write_text(board.read_text().replace("temp_c = 84", "temp_c = 91").replace("[gpu1]\n", "[gpu1]\nerr.* = 15\n"))
    wait(lambda: value(gpus.latest(), "gpu1", "lost") is True)
    assert value(gpus.latest(), "gpu0", "temperature_c") == 91


def test_stuck_driver_is_said_and_nobody_waits(
    snapshot: Callable[..., Path], watch: Callable[..., GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "STALE_S", 0.6)
    snapshot("stuck")
    gpus = watch()
    wait(lambda: any(isinstance(i, Gap) and "does not answer" in i.reason for i in gpus.latest()))
    before = time.monotonic()
    gpus.latest()
    assert time.monotonic() - before < 0.1


def test_driver_that_comes_back(
    snapshot: Callable[..., Path], watch: Callable[..., GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "AGAIN_S", 0.2)
    board = snapshot("mismatch")
    gpus = watch()
    wait(lambda: any(isinstance(i, Gap) for i in gpus.latest()))
    assert not gpus.well()
    board.write_text((HERE / "fakenvml" / "t4.ini").read_text())
    wait(lambda: value(gpus.latest(), "gpu0", "name") == "Tesla T4")


def test_mig_slices(snapshot: Callable[..., Path], watch: Callable[..., GpuWatch]) -> None:
    snapshot("h100-mig")
    gpus = watch()
    wait(lambda: value(gpus.latest(), "gpu0", "mig_slice_total_mib") == [9856, 40448])
    assert value(gpus.latest(), "gpu0", "mig_slice_free_mib") == [9844, 20448]
    assert value(gpus.latest(), "gpu0", "mig_slice_instance") == [9, 2]
    assert value(gpus.latest(), "process", "mig_instance") == 2


def test_mig_slices_on_the_screen(snapshot: Callable[..., Path], watch: Callable[..., GpuWatch]) -> None:
    """Each slice with its own memory, the process with the slice it runs in; beside a card that is lost."""
    snapshot("h100-mig")
    gpus = watch()
    wait(gpus.well)
    state = State()
    state.take(Evidence(tuple(i for i in gpus.latest() if isinstance(i, Fact))), None)
    shown = "\n".join(line.plain for line in overview(state, 100, 30))
    assert re.search(r"1g\.10gb .* 0\.0G/9\.6G", shown)
    assert re.search(r"3g\.40gb .* 19\.5G/39\.5G", shown)
    assert re.search(r"19\.5G  3g\.40gb ", shown)
    assert "GPU LOST" in shown


def test_without_mig_no_process_has_an_instance(snapshot: Callable[..., Path], watch: Callable[..., GpuWatch]) -> None:
    snapshot("rtx4090")
    gpus = watch()
    wait(lambda: value(gpus.latest(), "process", "pid") is not None)
    assert value(gpus.latest(), "process", "mig_instance") is None


def test_names_of_processes() -> None:
    names = Names()
    me = os.getpid()
    first = names.of([me])[me]
    assert "python" in str(first["command"])
    assert names.of([me])[me] is first  # read once
    assert "command" not in names.of([2**22 - 1])[2**22 - 1]
    assert me not in names._known  # forgotten with the process


def test_pid_of_another_namespace_is_not_given_a_name(tmp_path: Path) -> None:
    """Inside a container NVML may list the host's pid 42; our own pid 42 has no GPU device open."""
    assert holds_gpu(42, str(tmp_path)) is None  # no NVIDIA device here: nothing can be told
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    handles = tmp_path / "proc" / "42" / "fd"
    handles.mkdir(parents=True)
    (handles / "3").symlink_to("/tmp/file")
    assert holds_gpu(42, str(tmp_path)) is False
    (handles / "4").symlink_to("/dev/nvidia0")
    assert holds_gpu(42, str(tmp_path)) is True


def test_who_holds_a_cards_memory() -> None:
    facts = [
        *canned.facts("gpu0", memory_used_mib=21000),
        *canned.process(0, 0, 18000, "vllm serve m", engine="vllm", ours=True),
        *canned.process(1, 0, 2000, "python train.py"),
        *canned.process(2, 1, 999, "python elsewhere.py"),
    ]
    found = {f.name: f.value for f in shares(facts)}
    assert found["processes"] == 2
    assert found["memory_used_by_servers_mib"] == 18000
    assert found["memory_unattributed_mib"] == 1000


class Pages:
    """A server whose pages the test sets; None refuses."""

    def __init__(self) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        pages = self
        self.metrics = ""
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                pages.asked.append(self.path)
                body = {"/metrics": pages.metrics, "/health": "ok", "/version": '{"version": "0.32.0"}'}.get(
                    self.path, "{}"
                ).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


def metrics(tokens: int, running: int = 1) -> str:
    return f'# HELP x\nvllm:num_requests_running{{engine="0"}} {running}\nvllm:generation_tokens_total{{engine="0"}} {tokens}\nprocess_cpu_seconds_total 5\n'


def test_server_is_read_as_a_window_over_one_connection() -> None:
    pages = Pages()
    clock = [100.0]
    reading = Reading(pages.url, clock=lambda: clock[0])
    pages.metrics = metrics(1000)
    first = reading.take()
    assert first.first("server", "version") == "0.32.0"
    asked = len(pages.asked)
    for step in range(1, 4):
        clock[0] += 2
        pages.metrics = metrics(1000 + 400 * step, running=step)
        found = reading.take()
    assert len(pages.asked) == asked + 3  # the metrics alone
    assert found.first("server", "generation_tok_s") == pytest.approx(200, rel=0.01)
    assert found.first("server", "running") == 3
    assert found.first("server", "version") == "0.32.0"
    pages.server.shutdown()
    pages.server.server_close()


def test_server_that_restarts() -> None:
    pages = Pages()
    pages.metrics = metrics(5000)
    reading = Reading(pages.url)
    assert reading.take().first("server", "reachable") is True
    gone = Reading("http://127.0.0.1:9")
    assert gone.take().first("server", "reachable") is False
    pages.metrics = ""  # up, but without metrics
    assert reading.take().first("server", "reachable") is True
    pages.server.shutdown()
    pages.server.server_close()


def test_recording_plays_again(tmp_path: Path) -> None:
    whole = canned.samples(6)
    folder = tmp_path / "rec"
    recorder = Recorder(CannedFeed(whole), str(folder))
    while recorder.sample() is not None:
        pass
    assert len(list(folder.glob("*.json"))) == 6
    replay = ReplayFeed(str(folder), rate=0)
    seen = []
    while (one := replay.sample()) is not None:
        seen.append(one)
    assert seen == whole
    with pytest.raises(DstuneError, match="holds a recording already"):
        Recorder(CannedFeed([]), str(folder))


def test_pause_and_seek(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    recorder = Recorder(CannedFeed(canned.samples(10)), str(folder))
    while recorder.sample() is not None:
        pass
    replay = ReplayFeed(str(folder), rate=0)
    for _ in range(4):
        replay.sample()
    replay.pause()
    assert replay.seek(-2) == -3  # the screen shows sample 3; sample 1 is to be shown next
    shown = replay.sample()
    assert shown is not None
    assert shown.origin["started"] == 1001.0
    taken: list[Evidence | None] = []
    thread = threading.Thread(target=lambda: taken.append(replay.sample()))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()  # paused
    replay.seek(100)
    thread.join(5)
    assert taken[0] is not None
    assert taken[0].origin["started"] == 1009.0
    assert "paused 10/10" in replay.place


def test_recording_keeps_its_pace(tmp_path: Path) -> None:
    for i, at in enumerate((10.0, 10.4)):
        (tmp_path / f"{i}.json").write_text(json.dumps({"facts": [], "gaps": [], "hits": [], "origin": {"started": at}}))
    replay = ReplayFeed(str(tmp_path), rate=2)
    before = time.monotonic()
    replay.sample()
    replay.sample()
    assert 0.18 <= time.monotonic() - before < 2


def test_damaged_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text("{")
    (tmp_path / "1.json").write_text(json.dumps({"facts": [], "origin": {"started": 1}}))
    replay = ReplayFeed(str(tmp_path), rate=0)
    with pytest.raises(DstuneError, match=r"0\.json is no evidence"):
        replay.sample()
    assert replay.sample() is not None  # the rest still plays
    with pytest.raises(DstuneError):
        ReplayFeed(str(tmp_path / "absent"))


def test_real_recording_of_an_h200_shows_power_cap_and_growth() -> None:
    replay, state = ReplayFeed(str(HERE / "evidence" / "recordings" / "h200-decode"), rate=0), State()
    while (one := replay.sample()) is not None:
        state.take(one, None)
    assert state.value("gpu0", "name") == "NVIDIA H200"
    assert state.value("gpu0", "clock_event_reasons") == ["sw_power_cap"]
    drawn = [v for v in state.series("gpu0", "power_draw_w") if v is not None]
    assert drawn[1] < 100
    assert max(drawn) > 600
    assert sum(p.mib for p in split.split(state, "gpu0")) == pytest.approx(state.number("gpu0", "memory_used_mib"), abs=64)


def test_history_is_bounded_and_keeps_holes() -> None:
    state = State()
    sample = canned.samples(1)[0]
    for i in range(KEEP + 50):
        gone = i in (KEEP, KEEP + 1)
        facts = tuple(f for f in sample.facts if not (gone and f.subject == "gpu0"))
        state.take(Evidence(facts, (), (), {"started": float(i)}), None)
    values = state.series("gpu0", "utilization_pct")
    assert len(values) == KEEP
    assert values[-50:-48] == [None, None]
    assert state.span() == "10 min"


def test_curve_columns_do_not_shimmer() -> None:
    """A column keeps its mean while new samples come: its samples are fixed by their number."""
    state = State()
    seen = []
    for i in range(200):
        state.take(Evidence((Fact("gpu0", "utilization_pct", i),), (), (), {"started": float(i)}), None)
        if i > 150:
            seen.append(state.curve("gpu0", "utilization_pct", 50))
    whole = [set(c[1:-1]) for c in seen]
    assert all(a - b == set() or len(a - b) <= 1 for a, b in itertools.pairwise(whole))


def test_token_rate_out_of_the_counter() -> None:
    state = State()
    for at, tokens in ((1.0, 100), (3.0, 500), (5.0, 40)):
        state.take(Evidence((Fact("server", "generation_tokens", tokens),), (), (), {"started": at}), None)
        rate = state.value("server", "generation_tok_s")
        assert rate == {1.0: None, 3.0: 200.0, 5.0: None}[at]  # a restart is no negative rate


def test_flicker_asks_for_no_new_diagnosis() -> None:
    def of(value: float) -> int:
        return sampling.fingerprint(Evidence((Fact("gpu0", "power_draw_w", value),)))

    assert of(431.2) == of(432.9)
    assert of(431.2) != of(520.0)


def test_log_is_followed_through_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\ntwo")
    found = follow.follow(str(path))
    assert next(found) == "one\n"
    with path.open("a") as f:
        f.write(" and more\n")
    assert next(found) == "two and more\n"
    path.rename(tmp_path / "server.log.1")
    assert "cannot be read" in next(found)
    assert next(found) == ""
    path.write_text("fresh\n")
    assert next(found) == "fresh\n"
    path.write_text("")
    assert next(found) == ""


DOCKER = """#!/bin/sh
# a container engine of one container: $STATE holds its lines; `stopped`, `gone` and `denied` beside it say how it is
cd "$(dirname "$0")"
at=$(wc -l < lines) # before the call is noted: what a test writes once it sees the call is new
echo "$@" >> calls
[ -e denied ] && { echo "permission denied while trying to connect to the Docker daemon socket" >&2; exit 1; }
[ -e gone ] && { echo "Error response from daemon: No such container: $5" >&2; exit 1; }
[ "$3" = --since ] || head -n "$at" lines
while [ ! -e stopped ]; do
    now=$(wc -l < lines)
    [ "$now" -gt "$at" ] && tail -n +$((at + 1)) lines && at=$now
    sleep 0.05
done
"""


class Followed:
    """What a followed log has said so far; `until` waits for words, and fails where they do not come."""

    def __init__(self, source: str) -> None:
        self.pieces, self.text = follow.follow(source), ""

    def until(self, words: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, self.text
            self.text += next(self.pieces)
            time.sleep(0.005)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with `docker`, `podman` and `journalctl`, all the same script."""
    for name in ("docker", "podman", "journalctl"):
        (tmp_path / name).write_text(DOCKER)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "lines").write_text("INFO started\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    return tmp_path


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_log_of_a_container_is_followed_through_its_restart(engine: Path, kind: str) -> None:
    log = Followed(f"{kind}:web")
    log.until("INFO started\n")
    with (engine / "lines").open("a") as f:
        f.write("INFO ready\n")
    log.until("INFO ready\n")
    (engine / "stopped").touch()
    log.until("[container web has stopped; waiting for it to come back]\n")
    (engine / "stopped").unlink()
    wait(lambda: (next(log.pieces), "--since" in (engine / "calls").read_text())[1])
    with (engine / "lines").open("a") as f:
        f.write("INFO started again\n")
    log.until("[web is followed again]\nINFO started again\n")
    assert log.text.count("INFO ready") == 1  # no line twice
    log.pieces.close()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_log_of_a_container_that_is_replaced(engine: Path) -> None:
    """`docker compose up` makes a new one of the same name."""
    log = Followed("docker:web")
    log.until("INFO started\n")
    (engine / "gone").touch()
    (engine / "stopped").touch()
    log.until("[no container web here; waiting for one]\n")
    calls = len((engine / "calls").read_text().splitlines())
    wait(lambda: (next(log.pieces), len((engine / "calls").read_text().splitlines()) > calls + 1)[1])
    assert log.text.count("no container web") == 1  # said once, however often it is tried
    (engine / "gone").unlink()
    (engine / "stopped").unlink()
    calls = len((engine / "calls").read_text().splitlines())
    wait(lambda: (next(log.pieces), len((engine / "calls").read_text().splitlines()) > calls)[1])
    with (engine / "lines").open("a") as f:
        f.write("INFO new\n")
    log.until("[web is followed again]\nINFO new\n")
    log.pieces.close()  # type: ignore[attr-defined]


def test_log_program_that_is_refused_or_absent(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine / "denied").touch()
    log = Followed("docker:web")
    log.until("permission denied")
    log.until("[docker logs ended with 1; trying again]\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "docker: " in "".join(follow.follow("docker:web"))


def test_journal_is_followed(engine: Path) -> None:
    log = Followed("journal:vllm.service")
    log.until("INFO started\n")
    assert (engine / "calls").read_text() == "-f -u vllm.service -n 500\n"
    with (engine / "lines").open("a") as f:
        f.write("ERROR out of memory\n")
    log.until("ERROR out of memory\n")
    log.pieces.close()  # type: ignore[attr-defined]


def test_nobody_is_left_behind_when_the_log_is_closed(engine: Path) -> None:
    log = Followed("docker:web")
    log.until("INFO started\n")
    mine = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    (child,) = [int(line.split()[0]) for line in mine.splitlines() if "docker logs" in line]
    log.pieces.close()  # type: ignore[attr-defined]
    assert not Path(f"/proc/{child}").exists()


def test_scrolled_back_log_stays_where_it_is() -> None:
    state = logs.LogState(source="x")
    state.feed("".join(f"line {i}\n" for i in range(100)))
    state.turn(20, 10)
    before = logs.log_screen(state, 80, 11)[1:]
    state.feed("later\nlater still\n")
    assert [t.plain for t in logs.log_screen(state, 80, 11)[1:]] == [t.plain for t in before]
    state.turn(-1000, 10)
    assert logs.log_screen(state, 80, 11)[-1].plain.endswith("later still")


@pytest.mark.parametrize("text", ["ab", "显存显存", "a显b存"])
def test_cells_of_wide_letters(text: str) -> None:
    from rich.cells import cell_len

    for width in range(1, 12):
        assert cell_len(draw.fit(text, width)) <= width
        assert cell_len(draw.left(text, width)) == width
        assert cell_len(draw.right(text, width)) == width


def test_bars_and_curves_have_their_size() -> None:
    for share in (0, 0.004, 0.5, 0.999, 1, 3):
        assert draw.bar(share, 10).cell_len == 10
        assert draw.parts([(share / 2, "blue", "K"), (share / 2, "yellow", "o")], 10).cell_len == 10
    lines = draw.graph([0, None, 50, 100], 6, 2, 100)
    assert [line.plain for line in lines] == ["     █", "  ▁ ██"]


@pytest.mark.parametrize("width", [4, 7, 19, 40])
def test_bar_of_several_parts_is_as_long_as_their_sum(width: int) -> None:
    """Eight parts of 8 % each are 64 %, however few cells there are; a part of one per cent is seen where there is room."""
    bar = draw.parts([(0.08, "magenta", "W")] * 8, width).plain
    assert bar.count("█") == round(0.64 * width)
    small = draw.parts([(0.6, "magenta", "W"), (0.01, "yellow", "o")], width, plain=True).plain
    assert small.count("W") + small.count("o") == round(0.61 * width)
    assert "o" in small


def test_timeline_counts_every_answer() -> None:
    marks = [(0.5 * i, 3 * i) for i in range(1, 61)]
    rates = load.rates(marks, 80)
    assert sum(r or 0 for r in rates) == pytest.approx(180)
    assert len(load.rates(marks, 10)) <= 10


def test_child_leaves_when_the_monitor_is_gone(snapshot: Callable[..., Path]) -> None:
    snapshot("t4")
    child = subprocess.Popen(
        [sys.executable, "-m", "dstune.probes.nvidia_watch", "0.05"], stdout=subprocess.PIPE, cwd=HERE.parent
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b'{"facts"')
    child.stdout.close()
    assert child.wait(10) == 0


def test_long_line_of_a_diff_is_seen_to_its_end() -> None:
    from dstune.model.plan import Artifact
    from dstune.tui.doctor import diff

    line = "+vllm serve " + "x" * 150 + " --max-num-seqs 64"
    shown = [t.plain for t in diff([Artifact("launch.sh", "", f"--- a\n+++ b\n{line}\n \n")], 60)]
    assert "".join(shown[2:5]) == line
    assert max(map(len, shown)) <= 60


def test_full_disk_ends_the_recording_not_the_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(CannedFeed([Evidence()] * 4), str(tmp_path / "r"))
    assert recorder.sample() is not None

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        assert recorder.sample() is not None
        assert recorder.place == "✖ disk full"
    assert os.listdir(tmp_path / "r") == ["000000.json"]
    assert recorder.sample() is not None
    assert "● 2" in recorder.place
    assert sorted(os.listdir(tmp_path / "r")) == ["000000.json", "000001.json"]
