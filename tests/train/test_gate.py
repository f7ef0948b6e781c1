"""The gate between fleets that share a device: who may go through together, and who waits for whom."""

import itertools
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from pstn.train.fleet.gate import Gate


@contextmanager
def someone(way):
    """Another thread that goes through a gate and stays; whether it is through yet."""
    through, leave = threading.Event(), threading.Event()

    def go():
        with way():
            through.set()
            leave.wait(10)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield through
    finally:
        leave.set()
        thread.join(10)


def light(gate):
    return lambda: gate.step("light")


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (light, light, True),
        (light, lambda gate: gate.preparing, False),
        (light, lambda gate: gate.alone, False),
        (lambda gate: gate.preparing, lambda gate: gate.preparing, True),
        (lambda gate: gate.preparing, light, False),
        (lambda gate: gate.preparing, lambda gate: gate.alone, False),
        (lambda gate: gate.alone, lambda gate: gate.alone, False),
        (lambda gate: gate.alone, light, False),
        (lambda gate: gate.alone, lambda gate: gate.preparing, False),
    ],
)
def test_who_waits_for_whom(first, second, together):
    gate, here = Gate(turn=0.1), ExitStack()
    assert here.enter_context(someone(first(gate))).wait(10)
    with someone(second(gate)) as other:
        assert other.wait(10 if together else 0.1) == together
        here.close()
        assert other.wait(10)
    with gate.alone():  # all are out
        assert gate.inside == 0


def test_an_error_opens_the_gate_again():
    gate = Gate()
    for way in (gate.alone, gate.preparing, light(gate)):
        with pytest.raises(KeyError), way():
            raise KeyError
    with gate.alone():
        assert gate.inside == 0


def test_light_and_heavy_take_turns_and_never_step_together():
    gate, inside, seen, stop = Gate(turn=0.05), {"light": 0, "heavy": 0}, [], time.monotonic() + 1.0

    def train(kind, other):
        with gate.training(kind):
            while time.monotonic() < stop:
                with gate.step(kind):
                    inside[kind] += 1
                    seen.append((kind, inside[other]))
                    time.sleep(0.002)
                    inside[kind] -= 1

    threads = [threading.Thread(target=train, args=pair) for pair in [("light", "heavy")] * 3 + [("heavy", "light")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    kinds = [kind for kind, _ in seen]
    assert kinds.count("light") > 3
    assert kinds.count("heavy") > 3
    assert 4 <= sum(a != b for a, b in itertools.pairwise(kinds)) <= 40  # many turns, and each of many steps
    assert all(others == 0 for _, others in seen)


def test_one_kind_alone_waits_for_no_turn():
    gate = Gate(turn=60.0)
    with gate.training("heavy"), gate.step("heavy"):
        assert gate.inside == 1
    with gate.training("light"), gate.step("light"):
        assert gate.inside == 1
