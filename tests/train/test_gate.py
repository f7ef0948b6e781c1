"""The gate between fleets that share a device: many through together, or one alone."""

import threading

from pstn.train.fleet.gate import Gate


def test_one_alone_waits_for_those_inside_and_keeps_others_out():
    gate, seen, inside, leave, alone, done = Gate(), [], *(threading.Event() for _ in range(4))

    def together():
        with gate.together():
            inside.set()
            leave.wait(10)
            seen.append("together")

    def by_itself():
        with gate.alone():
            alone.set()
            seen.append("alone")
            done.wait(10)

    def late():
        alone.wait(10)
        with gate.together():
            seen.append("late")

    threads = [threading.Thread(target=what) for what in (together, by_itself, late)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[2].start()
    assert not alone.wait(0.1)
    leave.set()
    assert alone.wait(10)
    assert not any(thread.join(0.1) for thread in threads[2:])
    assert seen == ["together", "alone"]
    done.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["together", "alone", "late"]


def test_an_error_opens_the_gate_again():
    gate = Gate()
    for way in (gate.alone, gate.together):
        try:
            with way():
                raise KeyError
        except KeyError:
            pass
    with gate.alone():
        assert gate.inside == 0
