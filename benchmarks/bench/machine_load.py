"""The load of the machine's CPU cores and of its GPU's video decoders while a benchmark runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

INTERVAL_SECONDS = 0.1
CPU_TIMES = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # idle and iowait, proc_stat(5)

ReadGpu = Callable[[], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine was: means over the measured time.

    Attributes:
        cpu_cores: busy cores of the whole machine, if the system reports them.
        nvdec_percent: use of the GPU's video decoders, if a tool reports it.
        nvdec_peak: the highest sample of `nvdec_percent`.
        gpu_percent: use of the rest of the GPU, if a tool reports it.
        measured_by: the tool that measured the GPU, or the reason why the tools failed.
    """

    cpu_cores: float | None
    nvdec_percent: float | None = None
    nvdec_peak: float | None = None
    gpu_percent: float | None = None
    measured_by: str


class LoadSampler:
    """Context manager that samples the load in a thread. `load` holds the result afterwards.

    Args:
        gpu: number of the GPU. If None, only the CPU is measured.
    """

    def __init__(self, gpu: int | None = None) -> None:
        self._gpu = gpu
        self._stop = threading.Event()
        self._samples: list[tuple[float, float]] = []
        self._measured_by = "no GPU asked for"
        self._thread: threading.Thread | None = None
        self.load = Load(cpu_cores=None, measured_by=self._measured_by)

    def __enter__(self) -> LoadSampler:
        self._cpu, self._started = _busy_seconds(), time.perf_counter()
        if self._gpu is not None:
            self._thread = threading.Thread(target=self._sample, args=(self._gpu,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed, busy = time.perf_counter() - self._started, _busy_seconds()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        cores = None if busy is None or self._cpu is None else (busy - self._cpu) / max(elapsed, 1e-9)
        self.load = Load(cpu_cores=cores, measured_by=self._measured_by)
        if self._samples:
            decoder, rest = zip(*self._samples, strict=True)
            self.load = replace(
                self.load, nvdec_percent=fmean(decoder), nvdec_peak=max(decoder), gpu_percent=fmean(rest)
            )

    def _sample(self, gpu: int) -> None:
        """Collect samples. If the GPU does not answer, collect none and record the reason."""
        try:
            read, self._measured_by = _nvml(gpu)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            try:
                read, self._measured_by = _nvidia_smi(gpu), "nvidia-smi"
                read()
            except (OSError, subprocess.SubprocessError, ValueError) as second:
                self._measured_by = f"neither NVML ({reason}) nor nvidia-smi ({second})"
                return
        while not self._stop.wait(INTERVAL_SECONDS):
            with contextlib.suppress(Exception):  # a missing sample does no harm
                self._samples.append(read())


def _busy_seconds() -> float | None:
    """Return how many seconds all cores together were busy since the system started, if the system reports it."""
    try:
        columns = [int(word) for word in CPU_TIMES.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(columns) - sum(columns[number] for number in IDLE_COLUMNS)) / os.sysconf("SC_CLK_TCK")


def _nvml(gpu: int) -> tuple[ReadGpu, str]:
    import pynvml

    pynvml.nvmlInit()
    handle: Any = pynvml.nvmlDeviceGetHandleByIndex(gpu)

    def read() -> tuple[float, float]:
        percent, _ = pynvml.nvmlDeviceGetDecoderUtilization(handle)
        return float(percent), float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    read()
    return read, "NVML"


def _nvidia_smi(gpu: int) -> ReadGpu:
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=utilization.decoder,utilization.gpu"]

    def read() -> tuple[float, float]:
        line = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], check=True, capture_output=True, text=True, timeout=10
        ).stdout
        decoder, rest = line.split(",")
        return float(decoder), float(rest)

    return read
