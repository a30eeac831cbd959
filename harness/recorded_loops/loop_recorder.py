"""Record a loop that runs without the harness: losses, gradient norms, digests of batches, and the trained state.

While the loop runs, the recorder never waits for a GPU. A number on a GPU is copied to the host asynchronously, and is
written some steps later, after it has arrived. State is read when the recording begins and when it is closed.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeGuard
from warnings import warn

import numpy as np
import torch
from torch import Tensor

from harness.devices import environment
from harness.devices.device import HostCopy, synchronize
from harness.errors import UsageError
from harness.evidence import layout, redaction
from harness.evidence.files import readable, write_text
from harness.execution.recorder import HEARTBEAT, Recorder, StepRows
from harness.execution.watchers.reductions import as_hex, digest_on_device
from harness.execution.watchers.state_watch import numbers, recorded, sketched
from harness.numbers import dump_json
from harness.recorded_loops.recordings import HEADER, LOOP, RATE, Line, LoopState, RecordingHeader
from harness.system.batches import leaves
from harness.system.replay.found_state import found_state
from harness.system.sharded_tensors import local

LOSS, TERM = "loss", "loss."
STATE = ("parameters", "buffers", "optimizer")
_OF_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
Number = float | Tensor


def record(folder: str | Path, *, model: object = None, optimizer: object = None) -> LoopRecorder:
    """Begin to record a loop in a new folder, and return the recorder. The recorder closes at the end of its `with`
    block, or when the process ends.

    model, optimizer: if given here, the state before the first step is recorded as well. Each rank of torchrun (RANK
    and WORLD_SIZE) writes into its own folder. Raise UsageError if `folder` contains anything except other ranks of
    this run.
    """
    return LoopRecorder(Path(folder), model, optimizer)


class LoopRecorder:
    """Writes one rank's recording. Call `step` once per step, and `close` after the last step."""

    def __init__(self, folder: Path, model: object, optimizer: object) -> None:
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        self.folder = _new_folder(folder, rank, size)
        header = RecordingHeader(
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rank=rank,
            world_size=size,
            environment=environment.collect(),
        )
        self._redacted = redaction.of_this_machine(set()) if redaction.wanted(None) else None
        header = self._redacted.model(header) if self._redacted else header
        write_text(self.folder / HEADER, dump_json(header.model_dump(mode="json"), indent=2) + "\n")
        self._recorder = Recorder(self.folder)
        self._series = self._recorder.series(LOOP, 0)
        self._model, self._optimizer = model, optimizer
        self._steps = 0
        self._names: list[str] = []
        self._on_the_way: deque[_Row] = deque()
        self._closed = False
        self._process = os.getpid()
        # the last error before the recording, such as the error of an earlier notebook cell
        self._raised_before = getattr(sys, "last_value", None)
        atexit.register(self._close_at_exit)
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
        """Record one step. Call this after the step's update.

        loss: a number, a tensor of one element, or terms by name. If no term is named `loss`, the sum of the terms is
            the loss.
        batch: the input of the step. Only its digest is recorded.
        model, optimizer: the trained objects, if `record` did not get them. Their state is recorded.

        The first step defines the quantities. In later steps, a missing quantity becomes NaN. A new quantity is left
        out with a warning. Raise UsageError after `close`, and for a quantity or batch of an unsupported type.
        """
        if self._closed:
            raise UsageError("the recording is closed; call `step` before `close`", where=str(self.folder))
        first = self._steps == 0 and self._model is None
        self._model = self._model if model is None else model
        self._optimizer = self._optimizer if optimizer is None else optimizer
        values = _quantities(loss, grad_norm) | _rates(self._optimizer)
        row = _Row(self._steps, values, batch)
        self._names = self._names or list(values)
        if more := [name for name in values if name not in self._names and not name.startswith(RATE)]:
            warn(f"not recorded, because the first step did not have these quantities: {', '.join(more)}", stacklevel=2)
        self._on_the_way.append(row)
        self._steps += 1
        self._write_arrived()
        if first:
            self._write_state()

    def close(self, error: BaseException | None = None) -> None:
        """Write the pending numbers and the end state. After an `error`, mark the recording as interrupted instead."""
        self._close(error, by_exit=False)

    def _close(self, error: BaseException | None, *, by_exit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        try:
            # The error that ended the loop may have broken the GPU. Writing may then fail, too.
            with nullcontext() if error is None else suppress(Exception):
                self._write_arrived(wait=True)
            if error is None:
                self._write_state()
            why = "" if error is None else f"{type(error).__name__}: {error}"[:2000]
            self._recorder.write(Line(error=self._redacted.text(why) if self._redacted else why, by_exit=by_exit))
        finally:
            self._recorder.close()
            (self.folder / HEARTBEAT).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        ended_well = isinstance(error, SystemExit) and not error.code
        self.close(None if ended_well else error)

    def _close_at_exit(self) -> None:
        """Close a recording that the loop left open. Mark the recording as interrupted if an exception ended the
        process.

        The exit code of the process is not known here. Therefore the recording notes that the end of the process closed
        it (`by_exit`).
        """
        if os.getpid() == self._process:  # a forked process has a copy of the recorder
            raised = getattr(sys, "last_value", None)
            self._close(None if raised is self._raised_before else raised, by_exit=True)

    def _write_arrived(self, *, wait: bool = False) -> None:
        while self._on_the_way and (wait or self._on_the_way[0].has_arrived()):
            row = self._on_the_way.popleft()
            found, digest = row.numbers()
            terms = [value for name, value in found.items() if name.startswith(TERM)]
            metrics = {name: [found.get(name, math.nan)] for name in self._names if name != LOSS}
            self._series.rows(StepRows([row.step], [found.get(LOSS, sum(terms))], [digest], [-1], [0], metrics))

    def _write_state(self) -> None:
        """Record this rank's part of the model's and the optimizer's state, if a model was given."""
        if self._model is None:
            return
        synchronize()
        with torch.no_grad():
            found = found_state(self._model, self._optimizer)
        state = {category: {name: local(each) for name, each in found[category].items()} for category in STATE}
        seen = recorded(state).model_copy(update={"numbers": numbers(state)})
        self._recorder.write(Line(seen=LoopState(steps=self._steps, state=seen, sketches=sketched(state))))


class _Row:
    """The numbers of one step. Numbers on a GPU may not have arrived on the host yet."""

    def __init__(self, step: int, values: Mapping[str, Number], batch: object) -> None:
        self.step = step
        self._values = dict(values)
        self._form, words = ([], {}) if batch is None else _digests(batch)
        for name, each in values.items():
            if isinstance(each, Tensor):
                words[name] = each.detach().reshape(()).to(torch.float64).view(torch.int64)
        by_device: dict[torch.device, list[str]] = {}
        for name, word in words.items():
            by_device.setdefault(word.device, []).append(name)
        self._words = [(names, HostCopy(torch.stack([words[each] for each in names]))) for names in by_device.values()]

    def has_arrived(self) -> bool:
        """Return True if every number is in the host's memory."""
        return all(words.has_arrived() for _, words in self._words)

    def numbers(self) -> tuple[dict[str, float], str]:
        """Return the numbers by name, and the batch's digest ("" without a batch). All numbers must have arrived."""
        words = {name: word for names, each in self._words for name, word in zip(names, each.tensor(), strict=True)}
        numbers = {
            name: float(words.pop(name).view(torch.float64)) if name in words else float(each)
            for name, each in self._values.items()
        }
        form = sorted([*self._form, *(f"{name} {as_hex(int(word))}" for name, word in words.items())])
        return numbers, hashlib.sha256("\n".join(form).encode()).hexdigest()[:16] if form else ""


def _quantities(loss: Number | Mapping[str, Number], grad_norm: Number | None) -> dict[str, Number]:
    """Return the step's numbers by name. Numbers on the host become floats.

    Raise UsageError for a tensor with more than one element.
    """
    loss_terms = loss if isinstance(loss, Mapping) else {LOSS: loss}
    named = {name if name == LOSS else f"{TERM}{_OF_NO_NAME.sub('_', name)}": each for name, each in loss_terms.items()}
    if not named or len(named) < len(loss_terms):
        raise UsageError(
            "`loss` needs a term, and the names of loss terms must differ in their letters, digits and _.-",
            where="loss",
            got=", ".join(loss_terms) or "no term",
            remedy="give each term a unique name",
        )
    named |= {} if grad_norm is None else {"grad_norm": grad_norm}
    return {name: _number(name, value) for name, value in named.items()}


def _rates(optimizer: object) -> dict[str, Number]:
    """Return the learning rates of an optimizer's groups, by name. A schedule may change them at each step.

    A rate that is not a single number is left out. For example, optimizers that choose the rate themselves have None.
    """
    groups = getattr(optimizer, "param_groups", None) or []
    rates = {f"{RATE}group{place}.lr": group.get("lr") for place, group in enumerate(groups)}
    return {name: _number(name, rate) for name, rate in rates.items() if _is_one_number(rate)}


def _is_one_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and local(value).numel() == 1)


def _number(name: str, value: Number) -> Number:
    if not isinstance(value, Tensor):
        return float(value)
    tensor = local(value).detach()
    if tensor.numel() != 1:
        must_be_one_number, reduce_it = "a recorded quantity must be one number", "reduce it, for example by `mean()`"
        raise UsageError(must_be_one_number, where=name, got=f"a tensor {list(tensor.shape)}", remedy=reduce_it)
    return tensor if tensor.is_cuda else float(tensor)


def _digests(batch: object) -> tuple[list[str], dict[str, Tensor]]:
    """Return a description of a batch as a list of lines, and the digests of the batch's tensors by name.

    The description lists names, types and shapes of all leaves (tensors, arrays, numbers), and values of non-tensors.
    """
    form, words = ["batch"], dict[str, Tensor]()
    for name, each in leaves(batch):
        if isinstance(each, Tensor):
            form.append(f"{name} {each.dtype} {list(local(each).shape)}")
            words[f"batch {name}"] = digest_on_device(local(each))
        elif isinstance(each, np.ndarray | np.generic) and not each.dtype.hasobject:
            form.append(f"{name} {each.dtype} {each.shape} {hashlib.sha256(each.tobytes()).hexdigest()}")
        elif isinstance(each, str | bytes | int | float | complex):
            form.append(f"{name} {each!r}")
        else:
            rule, remedy = "a batch must hold tensors, arrays, numbers and texts", "pass the values that the step reads"
            raise UsageError(rule, where=name, got=type(each).__name__, remedy=remedy)
    return form, words


def _new_folder(folder: Path, rank: int, size: int) -> Path:
    """Create and return this rank's folder. Raise UsageError if `folder` contains anything except other ranks of this
    run."""
    own = folder / layout.rank_name(rank)
    # The folder is listed only once, because other ranks create folders at the same time.
    there = list(folder.iterdir()) if folder.exists() else []
    headers = [each / HEADER for each in there if each.name.startswith(layout.RANK)]
    begun = [readable(each, RecordingHeader) for each in headers if each.exists()]
    taken = own in there or any(header is None or header.world_size != size for header in begun)
    if taken or len(headers) < len(there):
        folder_must_be_new, name_another_folder = (
            "a recording must be written into a new folder",
            "name another folder, or move the existing one away",
        )
        raise UsageError(
            folder_must_be_new, where=str(folder), got="a folder that already exists", remedy=name_another_folder
        )
    own.mkdir(parents=True)
    return own
