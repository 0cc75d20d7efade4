"""Megabytes a second of the full signature set over a log of real lines, beside `grep -c` with one of the patterns in the same run.

    python benchmarks/log_scan.py [--mb 120]

The log repeats the lines of tests/logs (healthy and failing, 1 failing line in 2,000) with changing numbers. Prints wall and CPU seconds,
the peak of memory, the hits, and what reading alone costs.
"""

import argparse
import random
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from dstune.readers.scan import blocks, open_log, scanner

ROOT = Path(__file__).parents[1]


def write(path: Path, megabytes: int) -> None:
    """The log."""
    source = random.Random(5)
    healthy = [x for f in sorted((ROOT / "tests/logs/healthy").glob("*.log")) for x in f.read_text(errors="replace").splitlines() if x]
    sick = [x for f in sorted((ROOT / "tests/logs").rglob("*.log")) if f.parent.name != "healthy" for x in f.read_text(errors="replace").splitlines() if x]
    with path.open("w") as f:
        size = 0
        while size < megabytes << 20:
            lines = []
            for _ in range(2000):
                line = source.choice(healthy)
                lines.append(re.sub(r"\d", lambda m: str(source.randrange(10)), line, count=6))
            lines[source.randrange(2000)] = source.choice(sick)
            text = "\n".join(lines) + "\n"
            f.write(text)
            size += len(text)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=120)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        write(path, a.mb)
        size = path.stat().st_size / 1e6
        scan = scanner("log")
        print(f"{size:.0f} MB, {len(scan.rows)} signatures")
        rows = []
        start, cpu = time.perf_counter(), time.process_time()
        with open_log(str(path)) as f:
            lines = sum(text.count("\n") for _, text in blocks(f))
        rows.append(("read and decode", time.perf_counter() - start, time.process_time() - cpu))
        start, cpu = time.perf_counter(), time.process_time()
        with open_log(str(path)) as f:
            hits, facts = scan.scan(blocks(f), "log", "server.log")
        rows.append(("dstune, all signatures", time.perf_counter() - start, time.process_time() - cpu))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(["grep", "-cE", r"CUDA out of memory\. Tried to allocate [0-9.]+ [KMG]iB", str(path)], stdout=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows.append(("grep -cE, one pattern", time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        for name, wall, used in rows:
            print(f"{name:26}{wall:8.2f} s wall {used:8.2f} s CPU {size / wall:8.0f} MB/s")
        print(f"{lines:,} lines, {len(hits)} hits, {len(facts)} facts, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
