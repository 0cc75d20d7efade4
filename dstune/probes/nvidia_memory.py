"""Memory on the cards, by process: what `dstune verify` asks while a program runs."""

from __future__ import annotations

from typing import Any


class Cards:
    """The cards of this machine. `of` never raises; None where there is no card or its driver does not tell."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self._nvml = pynvml
        except Exception:  # no library, no driver, no card
            self._handles = []
        from dstune.probes.nvidia_processes import own_pid_namespace

        self._before = self._used()
        self.per_process = not own_pid_namespace()

    def of(self, pids: list[int]) -> float | None:
        """MiB that these processes hold. Where the driver does not name them (another PID namespace), how much the cards' memory grew
        since this object was made; `per_process` is False then."""
        if not self._handles:
            return None
        wanted, named = set(pids), 0
        total = 0
        for handle in self._handles:
            for process in self._processes(handle):
                if process.pid in wanted and process.usedGpuMemory is not None:
                    named += 1
                    total += int(process.usedGpuMemory)
        if named:
            self.per_process = True
            return total / 2**20
        now = self._used()
        if now is None or self._before is None:
            return None
        self.per_process = False
        return max(0.0, (now - self._before) / 2**20)

    def _processes(self, handle: Any) -> list[Any]:
        try:
            return list(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except Exception:  # not supported here, or lost
            return []

    def _used(self) -> int | None:
        try:
            return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(h).used) for h in self._handles) if self._handles else None
        except Exception:
            return None
