"""Clocks and counters that benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections import deque

import torch


def device_ms(run, sets, repeats=7, calls=12):
    """Median device time of a call in ms: the host runs ahead while the device waits.

    ``sets`` of arguments, and results, are taken in turn, so that they do not stay in the cache.
    """
    keep = deque(maxlen=len(sets))
    for arguments in sets:
        keep.append(run(*arguments))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for n in range(calls):
        keep.append(run(*sets[n % len(sets)]))
    ahead = time.perf_counter() - begin  # as long as the host takes to issue the calls, and more
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(int((2 * ahead + 1e-3) * 2e9))
        start.record()
        for n in range(calls):
            keep.append(run(*sets[n % len(sets)]))
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return statistics.median(times)


def host_ms(run, arguments, repeats=5, calls=50):
    """Median time of a call in ms when the host issues one after another, as an eager program does."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run(*arguments)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times[1:])  # the first is for warming up


def turns_ms(functions, arguments, repeats=9):
    """Times of calls in ms on the CPU, a list a name: all take turns, as the machine may be busy with other things."""
    times = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, run in functions.items():
            start = time.perf_counter()
            run(*arguments)
            if turn:  # the first is for warming up
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def extra_bytes(run, arguments):
    """The most memory of the device that a call holds beyond what was there before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(*arguments)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_speed():
    """Bytes a second of a large copy, read and written."""
    a = torch.rand(2**29, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / (device_ms(lambda: b.copy_(a), [()] * 2) * 1e-3)


def multiply_speed(n=8192):
    """Floating-point operations a second of a large float32 matrix product, without TF32."""
    a, b = torch.rand(n, n, device="cuda"), torch.rand(n, n, device="cuda")
    return 2 * n**3 / (device_ms(lambda: a @ b, [()], repeats=3, calls=3) * 1e-3)


def launch_ms():
    """The least time from one small kernel to the next."""
    a = torch.zeros(1, device="cuda")
    return device_ms(lambda: a.add_(1), [()], calls=100)
