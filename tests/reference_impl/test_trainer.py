"""The trainer's promises: repeatable, static, undoable, recordable."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from reference_impl.block import Block
from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.errors import ReferenceImplError
from reference_impl.trainer import Trainer

SMALL = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=256
)


def small_config(**overrides: Any) -> TrainConfig:
    fields: dict[str, Any] = {
        "model": SMALL,
        "rank": 4,
        "alpha": 8.0,
        "batch_size": 2,
        "seq_len": 32,
        "learning_rate": 1e-2,
        "max_norm": 0.05,
        "steps": 10,
        "device": "cpu",
    }
    return TrainConfig(**{**fields, **overrides})


def losses(trainer: Trainer, steps: int) -> list[float]:
    return [trainer.step(index).item() for index in range(steps)]


def assert_same_state(one: Trainer, other: Trainer) -> None:
    for name, tensor in one.state_tensors().items():
        assert torch.equal(tensor, other.state_tensors()[name]), name


def snapshot(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.state_tensors().items()}


def restore(trainer: Trainer, saved: dict[str, Tensor]) -> None:
    for name, tensor in trainer.state_tensors().items():
        tensor.copy_(saved[name])


@pytest.mark.parametrize("weights", ["nf4", "full"])
def test_two_cpu_trainings_with_the_same_seed_are_bitwise_equal(weights: str) -> None:
    one, other = (Trainer(small_config(weights=weights)) for _ in range(2))
    assert losses(one, 5) == losses(other, 5)
    assert_same_state(one, other)


def test_dense_weights_kept_in_memory_train_like_weights_dequantized_each_step() -> None:
    anew, kept = (Trainer(small_config(weights=weights)) for weights in ("nf4", "nf4_dense"))
    assert losses(kept, 5) == losses(anew, 5)
    assert_same_state(anew, kept)
    frozen = [name for name in kept.frozen_tensors() if name.endswith(("codes", "absmax"))]
    assert frozen == [], "nothing is stored twice"


def test_a_different_seed_gives_a_different_training() -> None:
    assert losses(Trainer(small_config()), 1) != losses(Trainer(small_config(seed=1)), 1)


def test_a_step_split_into_forward_and_backward_equals_the_unsplit_step() -> None:
    whole, split = Trainer(small_config()), Trainer(small_config())
    for index in range(5):
        expected = whole.step(index)
        split.prepare(index)
        assert torch.equal(split.forward_body(), expected)
        split.backward_body()
    assert_same_state(whole, split)


def test_the_backward_half_of_a_split_step_does_not_change_the_activations() -> None:
    """A captured backward pass may be replayed again on the same activations."""
    trainer = Trainer(small_config())
    trainer.prepare(0)
    trainer.forward_body()
    context = trainer.static.context
    assert context is not None
    before = [tensor.clone() for tensor in context.tensors()]
    trainer.backward_body()
    after = context.tensors()
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [True] * len(before)


def test_the_whole_step_frees_activations_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, alive = Trainer(small_config()), []
    references: list[weakref.ref[Tensor]] = []
    forward, backward = Block.forward, Block.backward

    def watched_forward(block: Block, *arguments: Any) -> Any:
        result = forward(block, *arguments)
        references.append(weakref.ref(result[2].gate_up))
        return result

    def watched_backward(block: Block, *arguments: Any, **options: Any) -> Any:
        alive.append(sum(reference() is not None for reference in references))
        return backward(block, *arguments, **options)

    monkeypatch.setattr(Block, "forward", watched_forward)
    monkeypatch.setattr(Block, "backward", watched_backward)
    trainer.step(0)
    assert alive == [2, 1]  # gate_up of both layers, then of the first one alone


def test_split_activations_keep_their_addresses() -> None:
    trainer = Trainer(small_config())
    addresses = []
    for index in range(2):
        trainer.prepare(index)
        trainer.forward_body()
        assert trainer.static.context is not None
        addresses.append([tensor.data_ptr() for tensor in trainer.static.context.tensors()])
        trainer.backward_body()
    assert addresses[0] == addresses[1]


def test_a_backward_pass_before_any_forward_pass_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"call forward_body\(\) first"):
        Trainer(small_config()).backward_body()


def test_restoring_a_trainers_state_tensors_undoes_its_steps() -> None:
    trainer = Trainer(small_config())
    trainer.step(0)
    saved = snapshot(trainer)
    first = losses(trainer, 4)
    restore(trainer, saved)
    assert losses(trainer, 4) == first


def test_a_step_changes_no_tensors_except_the_state_tensors() -> None:
    trainer = Trainer(small_config())
    frozen = {name: tensor.clone() for name, tensor in trainer.frozen_tensors().items()}
    before = snapshot(trainer)
    trainer.step(0)
    assert all(torch.equal(frozen[name], tensor) for name, tensor in trainer.frozen_tensors().items())
    unchanged = {name for name, tensor in trainer.state_tensors().items() if torch.equal(before[name], tensor)}
    # B starts at zero, so its copy made at the step's start, and with it the gradient of A, are as zero as before;
    # and a good step skips nothing.
    assert unchanged == {"lora_b", "lora_grad_a", "skipped_steps"}


def test_every_trainable_tensor_gets_a_gradient_and_changes_in_a_step() -> None:
    trainer = Trainer(small_config())
    before = {name: tensor.clone() for name, tensor in trainer.parameters().items()}
    losses(trainer, 2)  # in the first step B is zero, and with it the gradient of A
    assert len(before) == 6 * SMALL.num_layers
    for name, tensor in trainer.parameters().items():
        assert trainer.gradients()[name].abs().max().item() > 0, name
        assert not torch.equal(tensor, before[name]), name


def test_a_batch_is_read_while_the_previous_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(small_config())
    batch = trainer.batch
    read = Mock(side_effect=batch)
    monkeypatch.setattr(trainer, "batch", read)
    CapturingTrainer(trainer, "none").step(0)
    assert read.mock_calls == [call(0), call(1)]
    for seq_len, reads in ((32, 2), (16, 3)):  # another shape has other batches
        static = trainer.set_shape(seq_len)
        trainer.prepare(1)
        assert read.call_count == reads
        assert all(map(torch.equal, (static.tokens, static.targets), batch(1)))


def test_a_recorded_step_body_is_replayed_with_every_bit_equal() -> None:
    plain, recorded = Trainer(small_config()), Trainer(small_config())
    recorded.prepare(0)
    saved = snapshot(recorded)
    # A lambda, because make_fx counts a bound method's self among the arguments.
    graph = make_fx(lambda: recorded.body())()  # noqa: PLW0108
    restore(recorded, saved)
    for index in range(5):
        expected = plain.step(index)
        recorded.prepare(index)
        assert torch.equal(graph(), expected), index
    assert_same_state(plain, recorded)


def test_the_step_body_runs_on_fake_tensors() -> None:
    trainer = Trainer(small_config())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert trainer.body().shape == ()


def test_a_step_with_the_synchronizing_clip_fails_on_fake_tensors() -> None:
    trainer = Trainer(small_config(clip_mode="synchronizing"))
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        trainer.body()


def test_fused_and_synchronizing_clips_train_alike() -> None:
    fused = losses(Trainer(small_config()), 5)
    synchronizing = losses(Trainer(small_config(clip_mode="synchronizing")), 5)
    # The norms differ by the rounding of their sums, some 1e-7; five steps of 1e-2 amplify that little.
    assert max(abs(one - other) for one, other in zip(fused, synchronizing, strict=True)) <= 1e-5


def test_the_loss_computed_in_chunks_equals_the_loss_of_all_tokens() -> None:
    whole, chunked = (Trainer(small_config(loss_chunk=chunk)) for chunk in (64, 24))  # 64 tokens; the last chunk is 16
    for index in range(3):
        assert abs(whole.step(index).item() - chunked.step(index).item()) <= 1e-5
    torch.testing.assert_close(whole.trainable.flat, chunked.trainable.flat, rtol=0, atol=1e-5)


def test_a_zero_learning_rate_changes_no_parameter() -> None:
    trainer = Trainer(small_config(learning_rate=0.0))
    before = trainer.trainable.flat.clone()
    losses(trainer, 3)
    assert torch.equal(trainer.trainable.flat, before)


def test_each_input_shape_keeps_its_own_static_buffers() -> None:
    trainer = Trainer(small_config())
    short = trainer.static
    longer = trainer.set_shape(48, batch_size=1)
    trainer.step(0)
    assert longer.tokens.shape == (1, 48)
    assert trainer.set_shape(32) is short
    assert torch.equal(short.tokens, torch.zeros(2, 32, dtype=torch.int64))  # the other shape's batch went elsewhere


def test_a_batch_with_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"seq_len: got 0; use an integer of at least 1"):
        Trainer(small_config()).set_shape(0)


def test_a_returned_loss_is_not_overwritten_by_the_next_step() -> None:
    trainer = Trainer(small_config())
    loss = trainer.step(0)
    value = loss.item()
    trainer.step(1)
    assert loss.item() == value


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_cuda_trainer_on_a_machine_without_cuda_is_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"device: got 'cuda', but no CUDA device is available"):
        Trainer(small_config(device="cuda"))


def test_bfloat16_gradients_stay_close_to_float32_gradients() -> None:
    low, high = Trainer(small_config(dtype="bfloat16")), Trainer(small_config())
    low.step(0)
    high.step(0)
    distance = (low.trainable.gradient - high.trainable.gradient).norm() / high.trainable.gradient.norm()
    # About ten values a layer are rounded along a path, each by 2^-8 at most. Measured: 0.005. Less than 1e-4 would
    # mean that nothing was computed in bfloat16.
    assert 1e-4 <= distance.item() <= 20 * 2**-8
