"""`python -m dstune.probes FILE [MODEL_DIR…]`: records a machine that has Python and these sources only, without the command line's packages."""

import sys

from dstune.probes import collect
from dstune.probes.recording import save

if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit("python -m dstune.probes FILE [MODEL_DIR…]")
    evidence = collect(model_dirs=sys.argv[2:])
    save(sys.argv[1], evidence)
    print(f"{sys.argv[1]}: {len(evidence.facts)} facts, {len(evidence.gaps)} gaps", file=sys.stderr)
