"""The reference trainer's step of several micro-batches: the step of one batch within rounding, captured in bits."""

from __future__ import annotations

import pytest
import torch

from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.errors import ReferenceImplError
from reference_impl.prewarm import plan
from reference_impl.trainer import Trainer

# 2^-24 times the 6 sigma of a sum of some 10^4 terms: what another order of float32 additions may change.
ROUNDING = 4e-5


def config(micro_batches: int, batch_size: int = 8) -> TrainConfig:
    return TrainConfig.preset(
        "tiny", device="cpu", batch_size=batch_size, seq_len=16, steps=4, micro_batches=micro_batches
    )


def test_accumulated_gradients_norms_and_loss_equal_those_of_one_batch() -> None:
    one, four = Trainer(config(1)), Trainer(config(4))
    for index in range(3):
        losses = [trainer.step(index).item() for trainer in (one, four)]
        assert losses[1] == pytest.approx(losses[0], rel=ROUNDING)
        torch.testing.assert_close(four.clip.norms, one.clip.norms, rtol=ROUNDING, atol=0.0)
        theirs = one.gradients()
        for name, gradient in four.gradients().items():
            largest = float(theirs[name].abs().max())
            assert float((gradient - theirs[name]).abs().max()) <= ROUNDING * largest, name


def test_an_accumulating_step_updates_the_parameters_once() -> None:
    trainer = Trainer(config(4))
    for index in range(3):
        trainer.step(index)
    assert trainer.optimizer.step_count.item() == 3


def test_micro_batches_are_the_rows_of_the_batch_in_their_order() -> None:
    whole, parts = Trainer(config(1)), Trainer(config(4))
    for trainer in (whole, parts):
        trainer.prepare(2)
    assert parts.static.tokens.shape == (4, 2, 16)
    assert torch.equal(parts.static.tokens.flatten(0, 1), whole.static.tokens)
    assert torch.equal(parts.static.targets.flatten(0, 1), whole.static.targets)


@pytest.mark.slow
def test_a_traced_step_of_micro_batches_equals_the_plain_step_in_bits() -> None:
    plain, traced = (CapturingTrainer(Trainer(config(4)), scope) for scope in ("none", "step"))
    for index in range(4):
        assert torch.equal(plain.step(index), traced.step(index))
    assert (traced.captures, traced.replays) == (1, 4)
    for name, tensor in plain.trainer.state_tensors().items():
        assert torch.equal(tensor, traced.trainer.state_tensors()[name]), name


def test_a_changed_batch_shape_is_also_split_into_micro_batches() -> None:
    trainer = Trainer(config(4))
    assert trainer.set_shape(8, batch_size=4).tokens.shape == (4, 1, 8)
    with pytest.raises(ReferenceImplError, match=r"batch_size: got 6; use a multiple of micro_batches \(4\)"):
        trainer.set_shape(8, batch_size=6)


def test_a_prewarm_plans_kernels_of_one_micro_batch() -> None:
    model = Trainer(config(1)).model_config
    assert plan(model, config(4), [16]) == plan(model, config(1, batch_size=2), [16])
    assert plan(model, config(4), [16]) != plan(model, config(1), [16])


@pytest.mark.parametrize(("micro_batches", "remedy"), [(3, r"use a divisor of batch_size \(8\)"), (0, "at least 1")])
def test_invalid_numbers_of_micro_batches_are_refused(micro_batches: int, remedy: str) -> None:
    with pytest.raises(ReferenceImplError, match=remedy):
        config(micro_batches)


def test_capturing_half_of_an_accumulating_step_is_refused() -> None:
    trainer = CapturingTrainer(Trainer(config(4)), "backward")
    with pytest.raises(ReferenceImplError, match="capture the whole step, or use 1"):
        trainer.step(0)
