"""Each bad argument is named, with what was found and what to do; the learning-rate schedule."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from reference_impl.config import MODEL_PRESETS, TINY_CHECKPOINT, ModelConfig, TrainConfig, learning_rate_at
from reference_impl.errors import ReferenceImplError

BAD_TRAINING: list[tuple[dict[str, Any], str]] = [
    ({"rank": 0}, "rank: got 0; use an integer of at least 1"),
    ({"rank": 2.5}, "rank: got 2.5; use an integer of at least 1"),
    ({"seq_len": 0}, "seq_len: got 0; use an integer of at least 1"),
    ({"batch_size": -1}, "batch_size: got -1; use an integer of at least 1"),
    ({"steps": True}, "steps: got True; use an integer of at least 1"),
    ({"learning_rate": math.nan}, "learning_rate: got nan; use a finite number that is not negative"),
    ({"max_norm": 0.0}, "max_norm: got 0.0; use a finite positive number"),
    ({"alpha": math.inf}, "alpha: got inf; use a finite positive number"),
    ({"beta2": 1.0}, "beta2: got 1.0; use a number in [0, 1)"),
    ({"clip_scope": "layer"}, "clip_scope: got 'layer'; choose one of per_layer, global"),
    ({"clip_mode": "sync"}, "clip_mode: got 'sync'; choose one of fused, synchronizing"),
    ({"weights": "int8"}, "weights: got 'int8'; choose one of nf4, nf4_dense, full"),
    ({"dtype": "float16"}, "dtype: got 'float16'; choose one of auto, bfloat16, float32"),
    ({"model": "large"}, "model: got 'large'; name a preset (tiny, qwen2-1.5b) or a directory"),
]
BAD_SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"num_layers": 0}, "num_layers: got 0; use an integer of at least 1"),
    ({"num_kv_heads": 3}, "num_kv_heads: got 3; use a divisor of num_heads (4)"),
    ({"head_dim": 15}, "head_dim: got 15; use an even number"),
    ({"rope_theta": 0.0}, "rope_theta: got 0.0; use a finite positive number"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_TRAINING, ids=lambda value: next(iter(value)) if value else "")
def test_invalid_training_arguments_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ReferenceImplError, match=re.escape(message)):
        TrainConfig(**fields)


@pytest.mark.parametrize(("fields", "message"), BAD_SHAPES, ids=lambda value: next(iter(value)) if value else "")
def test_invalid_model_shapes_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ReferenceImplError, match=re.escape(message)):
        dataclasses.replace(MODEL_PRESETS["tiny"], **fields)


def test_a_configuration_error_names_the_argument_and_the_value_found() -> None:
    with pytest.raises(ReferenceImplError) as caught:
        TrainConfig(rank=0)
    assert (caught.value.argument, caught.value.found) == ("rank", "got 0")


def test_the_learning_rate_warms_up_and_then_falls_to_a_tenth() -> None:
    config = TrainConfig(learning_rate=1.0, warmup_steps=4, steps=104)
    assert [learning_rate_at(config, index) for index in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert math.isclose(learning_rate_at(config, 54), 0.55)  # half-way down the cosine: (1 + 0.1) / 2
    assert math.isclose(learning_rate_at(config, 104), 0.1)
    assert math.isclose(learning_rate_at(config, 1000), 0.1)


def test_presets_override_the_defaults_and_arguments_override_the_presets() -> None:
    config = TrainConfig.preset("tiny", seed=3)
    assert (config.rank, config.seq_len, config.seed) == (8, 64, 3)
    assert TrainConfig.preset("tiny", rank=2).rank == 2


def test_the_qwen2_preset_has_the_published_shape() -> None:
    shape = MODEL_PRESETS["qwen2-1.5b"]
    assert (shape.query_dim, shape.kv_dim, shape.qkv_dim) == (1536, 256, 2048)


def test_the_configuration_needs_no_torch() -> None:
    code = "import sys, reference_impl.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_checkpoint_directory_is_accepted_as_a_model() -> None:
    assert TrainConfig(model=str(TINY_CHECKPOINT)).model == str(TINY_CHECKPOINT)


def test_the_fused_qkv_width_accounts_for_grouped_queries() -> None:
    shape = ModelConfig(64, 96, 1, 4, 2, 16, 256)
    assert shape.qkv_dim == (4 + 2 * 2) * 16
