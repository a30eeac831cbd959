"""Give a data loader's batches by their index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.errors import HarnessError
from harness.system.batch_structure import tensors_alone


class BatchesEndedError(HarnessError):
    """A loader has no batch for a step that was asked for."""


class LoaderBatches:
    """The batches of a data loader in its own order, epoch after epoch, kept as far as they were asked for.

    Reading them leaves the process's generators as they were, as the loop reads its own, and goes on where it left them
    itself: of a data set that draws (noise, crops) each batch is another one. It is not work of the step: what watches
    operations does not see it.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._batches = _endless(loader)
        self._kept: list[Any] = []
        held = (getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None))
        self._of_loader = {str(id(each)): each for each in held if each is not None}
        self._states: dict[str, Any] = {key: each.get_state() for key, each in self._of_loader.items()}

    def __call__(self, index: int) -> Any:
        from harness.devices.host_waits import not_of_the_step

        if len(self._kept) <= index:
            with not_of_the_step(), self._own_generators():
                while len(self._kept) <= index:
                    self._kept.append(next(self._batches))
        return self._kept[index]

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Set the loader's and the process's generators as they were left here; the loop draws from the same ones."""
        from harness.system.replay.generators import accessors_of, host_generators, restore, states

        of_loader = {key: accessors_of(each) for key, each in self._of_loader.items()}
        drawn = host_generators() | {key: each for key, each in of_loader.items() if each is not None}
        theirs = states(drawn)
        restore(drawn, self._states)
        try:
            yield
        finally:
            self._states = states(drawn)
            restore(drawn, theirs)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    for epoch in itertools.count():
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        empty = True
        for batch in loader:
            empty = False
            yield tensors_alone(batch)
        if empty:
            raise BatchesEndedError(
                "a loader gives batches for as many steps as a run asks for, epoch after epoch",
                where=type(loader).__name__,
                got=f"none in epoch {epoch}",
                remedy="return the loader itself, which can be read again, and no iterator over it",
            )


def shuffled_by_the_process(loader: Any) -> bool:
    """Return True if the order of batches is drawn from the process's generator, which other code draws from, too."""
    return getattr(getattr(loader, "sampler", None), "generator", 0) is None  # of a random sampler that was given none


OWN_ORDER = "DataLoader(…, shuffle=True, generator=torch.Generator().manual_seed(seed))"
