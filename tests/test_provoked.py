"""Real servers were broken on purpose (tests/real/provoke.py); doctor's first finding on what they printed is the cause in the file's name."""

from pathlib import Path

import pytest

from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Diagnosis
from dstune.readers import read_files

LOGS = sorted((Path(__file__).parent / "logs" / "provoked").glob("*.log"))
HEALTHY = sorted((Path(__file__).parent / "logs" / "healthy").glob("*.log"))


def doctor(path: Path) -> Diagnosis:
    """What `dstune doctor --no-host --log FILE` judges."""
    found, _ = read_files([str(path)], {str(path): "log"})
    return diagnose(derive(found))


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_first_finding_is_the_cause(path: Path) -> None:
    found = doctor(path).findings
    assert found, "nothing was found"
    assert found[0].cause == path.stem.partition("--")[0], [(f.cause, f.confidence, f.message[:120]) for f in found]


def test_at_least_twenty_five() -> None:
    assert len(LOGS) >= 25


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.stem)
def test_a_healthy_log_has_no_error(path: Path) -> None:
    """Not even one at low confidence."""
    assert not [(f.cause, f.confidence) for f in doctor(path).findings if f.severity == "error"]


def test_there_are_healthy_logs() -> None:
    assert len(HEALTHY) >= 5
