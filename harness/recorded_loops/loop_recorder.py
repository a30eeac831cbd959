"""Record a loop that the harness cannot drive: its losses, norms and batches, and the state that it trains.

Nothing waits for a GPU while the loop runs: a number on a GPU is copied there, on its way to the host's memory, and
written when it has arrived, some steps later. State is read when the recording begins and when it is closed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from harness.devices import environment
from harness.devices.device import HostCopy
from harness.errors import UsageError
from harness.evidence import layout, redaction
from harness.evidence.files import Damaged, read_model, write_text
from harness.execution.recorder import HEARTBEAT, Recorder
from harness.execution.watchers.reductions import as_hex, combine_on_device, stacked
from harness.execution.watchers.state_watch import numbers, recorded, sketched
from harness.numbers import dump_json
from harness.recorded_loops.recordings import HEADER, LOOP, Line, LoopState, RecordingHeader
from harness.system.batch_structure import leaves
from harness.system.replay.found_state import found_state
from harness.system.shards import local

LOSS, TERM = "loss", "loss."
STATE = ("parameters", "buffers", "optimizer")
_OF_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
Number = float | Tensor


def record(folder: str | Path, *, model: object = None, optimizer: object = None) -> LoopRecorder:
    """Begin to record a loop into a new folder, and return its recorder, which a `with` block closes.

    model, optimizer: what is trained. Given here, the state before the first step is recorded too. Each rank of
    torchrun (RANK and WORLD_SIZE) writes into a folder of its own. Raises UsageError for a folder that exists.
    """
    return LoopRecorder(Path(folder), model, optimizer)


class LoopRecorder:
    """Writes one rank's recording: call `step` once a step, and `close` after the last one."""

    def __init__(self, folder: Path, model: object, optimizer: object) -> None:
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        self.folder = _new_folder(folder, rank, size)
        header = RecordingHeader(
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rank=rank,
            world_size=size,
            environment=environment.collect(),
        )
        header = redaction.of_this_machine(set()).model(header) if redaction.wanted(None) else header
        write_text(self.folder / HEADER, dump_json(header.model_dump(mode="json"), indent=2) + "\n")
        self._recorder = Recorder(self.folder)
        self._series = self._recorder.series(LOOP, 0)
        self._model, self._optimizer = model, optimizer
        self._steps = 0
        self._names: list[str] = []
        self._on_the_way: deque[_Row] = deque()
        self._closed = False
        self._write_state()

    def step(
        self,
        loss: Number | Mapping[str, Number],
        *,
        grad_norm: Number | None = None,
        batch: object = None,
        model: object = None,
        optimizer: object = None,
    ) -> None:
        """Record one step, after its update.

        loss: a number, a tensor of one element, or its terms by name; without a term named `loss` they are added.
        batch: what the step read; a digest is recorded. model, optimizer: what is trained, if `record` did not get it.
        Raises UsageError after `close`, and for other quantities than those of the first step.
        """
        if self._closed:
            raise UsageError("a recording that was closed takes no step", where=str(self.folder))
        first = self._steps == 0 and self._model is None
        self._model = self._model if model is None else model
        self._optimizer = self._optimizer if optimizer is None else optimizer
        values = _quantities(loss, grad_norm)
        self._names = self._names or list(values)
        if list(values) != self._names:
            rule = "every step records the quantities of the first one"
            raise UsageError(rule, where=f"step {self._steps}", got=", ".join(values), remedy=", ".join(self._names))
        self._on_the_way.append(_Row(self._steps, values, batch))
        self._steps += 1
        self._write_arrived()
        if first:
            self._write_state()

    def close(self, error: BaseException | None = None) -> None:
        """Write what is on the way, and the state at the end; after an `error` what was recorded counts as a part."""
        if self._closed:
            return
        self._closed = True
        try:
            with nullcontext() if error is None else suppress(Exception):  # a GPU may be lost with the loop
                self._write_arrived(wait=True)
            if error is None:
                self._write_state()
            why = "" if error is None else f"{type(error).__name__}: {error}"[:2000]
            self._recorder.write(Line(error=why))
        finally:
            self._recorder.close()
            (self.folder / HEARTBEAT).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.close(error)

    def _write_arrived(self, *, wait: bool = False) -> None:
        while self._on_the_way and (wait or self._on_the_way[0].has_arrived()):
            row = self._on_the_way.popleft()
            found, digest = row.numbers()
            loss = found.pop(LOSS, None)
            loss = sum(value for name, value in found.items() if name.startswith(TERM)) if loss is None else loss
            self._series.rows([row.step], [loss], [digest], [-1], [0], {name: [each] for name, each in found.items()})

    def _write_state(self) -> None:
        """Record what this rank holds of the model's and the optimizer's state, if a model was given."""
        if self._model is None:
            return
        with torch.no_grad():
            found = found_state(self._model, self._optimizer)
        state = {category: {name: local(each) for name, each in found[category].items()} for category in STATE}
        seen = recorded(state).model_copy(update={"numbers": numbers(state)})
        self._recorder.write(Line(seen=LoopState(steps=self._steps, state=seen, sketches=sketched(state))))


class _Row:
    """The numbers of one step: those on a GPU are on their way to the host's memory."""

    def __init__(self, step: int, values: Mapping[str, Number], batch: object) -> None:
        self.step = step
        self._values = dict(values)
        self._form, digest = ("", None) if batch is None else _digest(batch)
        numbers_there = {name: each for name, each in values.items() if isinstance(each, Tensor)}
        self._on_device = list(numbers_there)
        words = [each.detach().reshape(()).to(torch.float64).view(torch.int64) for each in numbers_there.values()]
        words += [] if digest is None else [digest]
        self._digested = digest is not None
        self._words = HostCopy(stacked(words) if words else torch.empty(0, dtype=torch.int64))

    def has_arrived(self) -> bool:
        """Return True if every number is in the host's memory."""
        return self._words.has_arrived()

    def numbers(self) -> tuple[dict[str, float], str]:
        """Return the numbers by name, and the batch's digest or "", once all have arrived."""
        words = self._words.tensor()
        found = dict(zip(self._on_device, words.view(torch.float64).tolist(), strict=False))
        word = as_hex(int(words[-1])) if self._digested else ""
        digest = hashlib.sha256(f"{self._form}{word}".encode()).hexdigest()[:16] if self._form else ""
        return {name: found[name] if isinstance(each, Tensor) else each for name, each in self._values.items()}, digest


def _quantities(loss: Number | Mapping[str, Number], grad_norm: Number | None) -> dict[str, Number]:
    """Return the step's numbers by name, those of the host as floats. Raises UsageError for more than one number."""
    named: dict[str, Number] = {}
    if isinstance(loss, Mapping):
        named = {name if name == LOSS else f"{TERM}{_OF_NO_NAME.sub('_', name)}": each for name, each in loss.items()}
    else:
        named = {LOSS: loss}
    named |= {} if grad_norm is None else {"grad_norm": grad_norm}
    return {name: _number(name, value) for name, value in named.items()}


def _number(name: str, value: Number) -> Number:
    if not isinstance(value, Tensor):
        return float(value)
    here = local(value).detach()
    if here.numel() != 1:
        rule, remedy = "a recorded quantity is one number", "reduce it, such as by `mean()`"
        raise UsageError(rule, where=name, got=f"a tensor {list(here.shape)}", remedy=remedy)
    return here if here.is_cuda else float(here)


def _digest(batch: object) -> tuple[str, Tensor | None]:
    """Return names, types and shapes of a batch's tensors with its other values, and a digest of the tensors' bits."""
    named = dict(leaves(batch))
    tensors = {name: local(each) for name, each in named.items() if isinstance(each, Tensor)}
    form = [f"{name} {each.dtype} {list(each.shape)}" for name, each in tensors.items()]
    form += [f"{name} {each!r}" for name, each in named.items() if isinstance(each, str | int | float)]
    return "\n".join(form), combine_on_device(tensors) if tensors else None


def _new_folder(folder: Path, rank: int, size: int) -> Path:
    """Make the folder of this rank and return it. Raises UsageError where another run was recorded into `folder`."""
    own = folder / layout.rank_name(rank)
    headers = [each / HEADER for each in folder.glob(f"{layout.RANK}*")]
    taken = own.exists() or any(each.exists() and _world_size(each) != size for each in headers)
    if taken or (folder.exists() and not headers and any(folder.iterdir())):
        rule, remedy = "a recording begins in a new folder", "name another one, or move this one away"
        raise UsageError(rule, where=str(folder), got="a folder that is there already", remedy=remedy)
    own.mkdir(parents=True)
    return own


def _world_size(header: Path) -> int:
    """Return the number of ranks that a recording is of; 0 for one that cannot be read."""
    try:
        return read_model(header, RecordingHeader).world_size
    except Damaged:
        return 0
