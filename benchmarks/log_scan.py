"""Megabytes a second of the full signature set over logs of real lines, beside `grep -c` with one of the patterns in the same run.

    python benchmarks/log_scan.py [--mb 120] [--times 1] [--runs 3]      --times 4: the file four times over, as one file

Three logs are made of the lines of tests/logs (healthy ones, and one of a failure in 2,000), in which numbers change, in length too. `server`:
nine lines in ten are those of running servers (requests, throughput), one in 50 carries a request id; `starts`: all lines equally often, as if
servers started all the time; `ids`: as that, and each line carries an id, so that none is like another. Prints wall and CPU seconds (medians),
the peak of memory, the hits, what reading alone costs, and whether two processes find what one finds.
"""

import argparse
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dstune.model import Fact, Hit
from dstune.readers.scan import blocks, open_log, scanner
from dstune.readers.scan_halves import scan_halves

ROOT = Path(__file__).parents[1]
NUMBER = r"(?<![\w/.])(?<!\x22 )\d+"
"""Not those of versions, names and HTTP statuses."""
PATTERN = r"CUDA out of memory\. Tried to allocate [0-9.]+ [KMG]iB"


def write(path: Path, megabytes: int, running: float, ids: float) -> None:
    """A log; shares of lines: `running` those of running servers only, `ids` with a request id."""
    source = random.Random(5)
    healthy: list[str] = []
    sick: list[str] = []
    for file in sorted((ROOT / "tests/logs").rglob("*.log")):
        lines = [line for line in file.read_text(errors="replace").splitlines() if line]
        (healthy if file.parent.name == "healthy" else sick).extend(lines)
    traffic = [line for line in healthy if "HTTP/1" in line or " throughput: " in line]
    with path.open("w") as f:
        size = 0
        while size < megabytes << 20:
            lines = []
            for _ in range(2000):
                line = source.choice(traffic if source.random() < running else healthy)
                line = re.sub(NUMBER, lambda m: str(source.randrange(10 ** min(len(m[0]), 9))), line, count=6)
                lines.append(line if source.random() >= ids else f"{line} chatcmpl-{source.getrandbits(128):032x}")
            lines[source.randrange(2000)] = source.choice(sick)
            text = "\n".join(lines) + "\n"
            f.write(text)
            size += len(text.encode())


def cpu() -> float:
    """CPU seconds of this process and the children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def timed(runs: int, job: Callable[[], object]) -> tuple[float, float, float]:
    """Medians of wall and CPU seconds, and the fewest CPU seconds: other work on the machine adds to the others."""
    walls, cpus = [], []
    for _ in range(runs):
        wall, used = time.perf_counter(), cpu()
        job()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu() - used)
    return statistics.median(walls), statistics.median(cpus), min(cpus)


def measure(name: str, path: Path, runs: int) -> None:
    """Prints the rows of one log."""
    size, scan = path.stat().st_size / 1e6, scanner("log")
    found: dict[str, tuple[list[Hit], list[Fact]]] = {}

    def read() -> None:
        with open_log(str(path)) as f:
            for _ in blocks(f):
                pass

    def one() -> None:
        with open_log(str(path)) as f:
            found["one"] = scan.scan(blocks(f), "log", "server.log")

    def two() -> None:
        both = scan_halves(str(path), "server.log")
        if both is not None:
            found["two"] = both

    def grep() -> None:
        subprocess.run(["grep", "-acE", PATTERN, str(path)], capture_output=True, check=False)  # it stops early for /dev/null

    print(f"{name}: {size:.0f} MB, {len(scan.rows)} signatures, load {os.getloadavg()[0]:.1f}")
    jobs = [
        ("reading alone", read),
        ("dstune, one process", one),
        ("dstune, two processes", two),
        ("grep -cE, one pattern", grep),
    ]
    for row, job in jobs:
        wall, used, best = timed(runs, job)
        print(
            f"  {row:24}{wall:8.2f} s wall {used:8.2f} s CPU {size / wall:8.0f} MB/s {size / max(used, 0.001):8.0f} MB per CPU second"
            f" (best {size / max(best, 0.001):.0f})"
        )
    own, child = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    same = "" if "two" not in found else ", the same by two" if found["one"] == found["two"] else ", OTHERS BY TWO"
    print(
        f"  {len(found['one'][0])} hits, {len(found['one'][1])} facts{same}, peak {own:.0f} MiB and {child:.0f} MiB of the second process"
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=120)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, megabytes, running, ids in (
            ("server", a.mb, 0.9, 0.02),
            ("starts", a.mb // 2, 0.0, 0.0),
            ("ids", a.mb // 2, 0.0, 1.0),
        ):
            path = Path(folder) / f"{name}.log"
            write(path, megabytes, running, ids)
            once = Path(folder) / "once"
            shutil.copyfile(path, once)
            with path.open("ab") as f:
                for _ in range(a.times - 1):
                    with once.open("rb") as again:
                        shutil.copyfileobj(again, f)
            measure(name, path, a.runs)


if __name__ == "__main__":
    main()
