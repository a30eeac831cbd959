"""After thousands of replays the host waits for a replay whose completion is never signalled."""

import time

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Replays stop after about 7,700 steps",
    thread="pytorch/pytorch#196133",
    users_saw="After about 7,700 steps of graph replays, copies and host waits, one rank waits for an event that "
    "never completes. The other rank waits in a collective until its timeout.",
    cause="The cause is unknown and below the CUDA driver: a launch succeeds, but its completion is never signalled. "
    "The entry re-enacts only the symptom: a 16-bit counter of signals overflows after 8,192 steps.",
    fix="No fix is published. In the entry the counters are compared modulo their width, so an overflow does not "
    "matter.",
    changed="The entry: the signal counter is created with the capture, like other buffers of a capture. Before, it "
    "existed from the start, but only in one arm.",
)

SIGNALS = 4  # number of signals in a step: one signal for each of its segments


class Signals:
    """Ends of segments, counted by the device in a short number; the host waits until enough have been seen."""

    def __init__(self, wraps):
        self.seen, self.wanted, self.wraps = torch.zeros((), dtype=torch.int16), 0, wraps

    def wait(self):
        self.wanted += SIGNALS
        missing = lambda: self.wanted - int(self.seen)
        while (missing() + 2**15) % 2**16 - 2**15 > 0 if self.wraps else missing() > 0:
            time.sleep(0.001)


def buggy(seed, captured):
    return make_step(seed, captured, mended=False)


def mended(seed, captured):
    return make_step(seed, captured, mended=True)


def make_step(seed, captured, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captures, static, signals = OwnCaptures(captured), {}, []

    def update():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(static["x"]), static["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(batch):
        fill(static, batch)
        if not captured:
            return update()
        if not captures.graphs:
            captures.capture("all", update, static, model.parameters())
            signals.append(Signals(wraps=mended))
        captures.replays += 1
        loss = captures.graphs["all"].replay()
        signals[0].seen += SIGNALS
        signals[0].wait()
        return loss

    batch = class_batches(seed, 16, 8, 4)

    return StepFunction(step, batch, model, captured=captures.record)
