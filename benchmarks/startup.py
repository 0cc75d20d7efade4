"""CPU seconds of whole commands, medians over runs after a warm-up, beside a bare interpreter and `import click` in the same run.

python benchmarks/startup.py [--runs 7] [--check]       --check: exit 1 above the limits
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = ["examples/gradio-naive/app.py", "examples/logs/oom-at-load-other-process.log"]
ROWS: tuple[tuple[str, list[str], float | None], ...] = (
    ("python -c pass", ["-c", "pass"], None),
    ("import click", ["-c", "import click"], None),
    ("dstune --version", ["-m", "dstune", "--version"], 0.10),
    ("dstune --help", ["-m", "dstune", "--help"], None),
    ("dstune doctor --json (2 files)", ["-m", "dstune", "doctor", "--json", "--no-host", *FILES], 0.30),
    ("dstune recommend --json", ["-m", "dstune", "recommend", "--json", "--gpu", "4090"], 0.40),
    ("dstune explain --json", ["-m", "dstune", "explain", "--json"], None),
)


def cpu(args: list[str]) -> float:
    """User and system seconds of one run and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--check", action="store_true")
    a = parser.parse_args()
    over = 0
    print(f"{'':34}{'median':>8}{'min':>8}{'max':>8}{'limit':>8}   CPU s")
    for name, args, limit in ROWS:
        cpu(args)
        times = [cpu(args) for _ in range(a.runs)]
        middle = statistics.median(times)
        over += limit is not None and middle > limit
        print(f"{name:34}{middle:>8.3f}{min(times):>8.3f}{max(times):>8.3f}{limit if limit is not None else '-':>8}")
    return int(bool(over) and a.check)


if __name__ == "__main__":
    raise SystemExit(main())
