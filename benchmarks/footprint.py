"""Packages and megabytes of the environment this runs in, pip and setuptools apart. Exits 1 above the limits.

python benchmarks/footprint.py [--max-packages N] [--max-mb N]
"""

import argparse
import importlib.metadata
import os
import sysconfig

INSTALLERS = ("pip", "setuptools", "wheel")


def main() -> int:
    """Prints both figures and compares them with the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-packages", type=int, default=30)
    parser.add_argument("--max-mb", type=float, default=75)
    limits = parser.parse_args()
    names = sorted({d.metadata["Name"].lower() for d in importlib.metadata.distributions()} - set(INSTALLERS))
    total = 0
    for folder, _, files in os.walk(sysconfig.get_paths()["purelib"]):
        inside = os.path.relpath(folder, sysconfig.get_paths()["purelib"]).split(os.sep)[0]
        if inside.split("-")[0] in INSTALLERS:
            continue
        total += sum(os.lstat(os.path.join(folder, f)).st_size for f in files)
    print(f"{len(names)} packages, {total / 1e6:.1f} MB: {', '.join(names)}")
    return int(len(names) > limits.max_packages or total / 1e6 > limits.max_mb)


if __name__ == "__main__":
    raise SystemExit(main())
