"""The transformers twin, over a made-up system that exports a two-layer Qwen2."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.errors import SystemResolutionError
from harness.extras.trainers.huggingface import TransformersQLoRA, TransformersRun
from harness.system.protocol import CheckpointExport, HasGradientNorms, HasInputs, NotAvailable

LAYERS, RANK, HIDDEN, MAX_NORM = 2, 2, 16, 1e-3
CONFIG: dict[str, object] = {
    "model_type": "qwen2",
    "vocab_size": 32,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
WORKLOAD = Workload(model="made-up", batch_size=2, seq_len=8, steps=6)
ARM = Arm.model_validate({"twin_of": "huggingface_subject:Exporter"})
PREFIX = "base_model.model.model.layers"


class Exporter:
    """Exports what a trainer would; its own step is of no interest here."""

    rate = 1e-2

    def __init__(self) -> None:
        import transformers  # not above: every process of the suite collects this file, and this takes seconds

        torch.manual_seed(3)
        fields = {key: value for key, value in CONFIG.items() if key != "model_type"}
        self.plain = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**fields)).float()
        self.values: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        for layer in range(LAYERS):
            self._add(f"{layer}.a", f"{PREFIX}.{layer}.self_attn.q_proj.lora_A.default.weight", (RANK, HIDDEN), 0.3)
            self._add(f"{layer}.b", f"{PREFIX}.{layer}.self_attn.q_proj.lora_B.default.weight", (HIDDEN, RANK), 0.0)
            self._add(f"{layer}.norm", f"{PREFIX}.{layer}.input_layernorm.weight", (HIDDEN,), 0.0)
            self.values[f"{layer}.norm"] += 1

    def _add(self, name: str, theirs: str, shape: tuple[int, ...], scale: float) -> None:
        self.values[name], self.names[name] = torch.randn(shape) * scale, theirs

    def describe(self) -> None: ...

    def open(self, workload: Workload, arm: Arm, **_: object) -> Exporter:
        self.arm = arm
        return self

    def export_checkpoint(self) -> CheckpointExport:
        state = {name: tensor for name, tensor in self.plain.state_dict().items() if name != "lm_head.weight"}
        return CheckpointExport(
            config=CONFIG,
            state=state,
            lora={"r": RANK, "lora_alpha": 4, "target_modules": ["q_proj"]},
            trainable=self.names,
            groups={str(layer): [f"{layer}.a", f"{layer}.b", f"{layer}.norm"] for layer in range(LAYERS)},
            max_norm=MAX_NORM,
            optimizer={"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0},
        )

    def parameters(self) -> Mapping[str, Tensor]:
        return self.values

    def frozen(self) -> Mapping[str, Tensor]:
        return {}

    def learning_rate_at(self, index: int) -> float:
        return self.rate

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(index))
        return tokens[:, :-1], tokens[:, 1:]

    def step(self, index: int) -> Tensor:
        raise NotImplementedError

    def facts(self) -> Mapping[str, Any]:
        return {"device": "cpu", "layers": LAYERS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> type[Exporter]:
    class Fresh(Exporter):
        pass

    module = types.ModuleType("huggingface_subject")
    module.Exporter = Fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_subject", module)
    return Fresh


def opened() -> TransformersRun:
    return TransformersQLoRA().open(WORKLOAD, ARM)


def test_it_starts_as_the_plain_model_with_the_systems_values(exporter: type[Exporter]) -> None:
    reference = exporter()
    tokens, targets = reference.batch(0)
    with torch.no_grad():
        logits = reference.plain(input_ids=tokens).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    with opened() as run:
        for name, value in run.parameters().items():
            assert torch.equal(value, reference.values[name]), name
        # B is zero, so LoRA adds nothing yet; the sums are made in another order
        assert float(run.step(0)) == pytest.approx(float(expected), rel=1e-6)


def test_it_trains_what_is_named_and_nothing_else(exporter: type[Exporter]) -> None:
    exporter.rate = 5e-2
    with opened() as run:
        frozen = {name: tensor.clone() for name, tensor in run.frozen().items()}
        losses = [float(run.step(0)) for _ in range(20)]
        assert losses[-1] < losses[0] - 0.01
        assert all(torch.equal(tensor, frozen[name]) for name, tensor in run.frozen().items())
        assert len(frozen) == 2 + LAYERS * 11
        reference = exporter().values
        assert not any(torch.equal(value, reference[name]) for name, value in run.parameters().items())


def test_gradients_are_clipped_by_group(exporter: type[Exporter]) -> None:
    with opened() as run:
        assert isinstance(run, HasGradientNorms)
        assert isinstance(run, HasInputs)
        run.step(0)
        before = run.gradient_norms()["before"]
        assert (before > MAX_NORM).all()
        for names in run.gradient_groups().values():
            squares = sum(float(run.gradients()[name].double().square().sum()) for name in names)
            assert squares**0.5 == pytest.approx(MAX_NORM, rel=1e-3)  # the clip's eps is 1e-6
        assert run.inputs()["tokens"].shape == (2, 8)


def test_the_schedule_is_the_systems(exporter: type[Exporter]) -> None:
    exporter.rate = 0.0
    with opened() as run:
        for index in range(3):
            run.step(index)
        reference = exporter().values
        assert all(torch.equal(value, reference[name]) for name, value in run.parameters().items())


def test_a_name_that_transformers_does_not_have_is_refused(
    exporter: type[Exporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = exporter.export_checkpoint

    def renamed(self: Exporter) -> CheckpointExport:
        made = export(self)
        state = {name.replace("q_proj", "query"): tensor for name, tensor in made.state.items()}
        return CheckpointExport(**{**made.__dict__, "state": state})

    monkeypatch.setattr(exporter, "export_checkpoint", renamed)
    with pytest.raises(SystemResolutionError, match=r"layers\.0\.self_attn\.q_proj\.bias"):
        opened()


def test_a_system_without_an_export_is_not_available(exporter: type[Exporter], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "open", lambda *_, **__: types.SimpleNamespace(step=None))
    with pytest.raises(NotAvailable, match="export_checkpoint"):
        opened()


def test_the_mirrored_system_is_opened_uncaptured_with_the_arms_other_settings(exporter: type[Exporter]) -> None:
    arm = Arm.model_validate({"twin_of": "huggingface_subject:Exporter", "rank": 4})
    run = TransformersQLoRA().open(WORKLOAD, arm)
    mirrored = run._twin_run.arm  # type: ignore[attr-defined]
    assert (mirrored.capture, mirrored.settings()) == ("none", {"rank": 4})


@pytest.mark.parametrize("arm", [Arm(), ARM])
def test_what_it_does_not_have_is_refused(exporter: type[Exporter], arm: Arm) -> None:
    with pytest.raises(ValueError, match="twin_of"):
        TransformersQLoRA().open(WORKLOAD, arm, fault="stale_batch" if arm is ARM else None)
