"""A quantised base: what it computes, what its adapters learn; refusals, which need no package.

The dequantised weights are the oracle: a plain base with exactly these must compute and learn the same.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.rlhf.model.families import family_folder
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import judgments, make_run, status_of, train
from training.contract import ContractError, read_manifest
from training.contract.methods import Method
from training.contract.methods.common import LoraSettings, OptimiserSettings
from training.contract.methods.policy import PreferenceSettings, SftSettings
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, Quantization
from training.recipe.recipe import Recipe
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.linear_layers import dequantised, is_quantised, refuse_unable
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack
from training.services.runs.memory import Shape, memory_of

CPU = torch.device("cpu")
HAS_PACKAGES = all(importlib.util.find_spec(name) for name in ("bitsandbytes", "torchao"))
needs_packages = [
    pytest.mark.quantised,
    pytest.mark.skipif(not HAS_PACKAGES, reason="`make test-quantised` installs bitsandbytes and torchao"),
]
KINDS: tuple[Quantization, ...] = ("int8", "nf4")
LORA = LoraSettings(rank=4, alpha=8.0, targets=("all-linear",))
ROW = (EncodedAnswer((0, 41, 52, 63, 74, 85, 2), 3), EncodedAnswer((0, 41, 52, 99, 120, 2), 3))


@pytest.fixture(params=["llama", "qwen2", "phi3"])
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny base whose widths are multiples of 64 weights; Qwen2 has biases, Phi-3 joins its layers."""
    return family_folder(tmp_path / request.param, request.param, hidden_size=64, intermediate_size=128)


def row_of() -> Batch:
    """A prompt with two answers, packed."""
    return pack([Example("", ROW, (0, 0))], device=CPU)


def states_of(backbone: Backbone, adapter: str | None) -> torch.Tensor:
    batch = row_of()
    with backbone.using(adapter):
        return backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)


def plain_twin(folder: Path, quantised: Backbone) -> Backbone:
    """The same base in full precision, with the weights that the quantised one multiplies by."""
    twin = Backbone.load(folder, device=CPU, dtype=torch.float32)
    for mine, other in zip(
        twin._model.get_decoder().layers, quantised._model.get_decoder().layers, strict=True
    ):
        layers = dict(other.named_modules())
        for name, layer in mine.named_modules():
            if isinstance(layer, nn.Linear):
                assert is_quantised(layers[name])
                with torch.no_grad():
                    layer.weight.copy_(dequantised(layers[name]))
    return twin


class TestWithPackages:
    pytestmark = needs_packages

    @pytest.mark.parametrize("kind", KINDS)
    def test_weights_are_rounded_to_the_nearest_value_of_their_kind(
        self, family: Path, kind: Quantization
    ) -> None:
        quantised = Backbone.load(family, device=CPU, dtype=torch.float32, quantization=kind)
        plain = Backbone.load(family, device=CPU, dtype=torch.float32)
        layers = dict(quantised._model.get_decoder().named_modules())
        rounded = 0
        for name, layer in plain._model.get_decoder().named_modules():
            if isinstance(layer, nn.Linear):
                rows = layer.weight if kind == "int8" else layer.weight.reshape(-1, 64)
                off = (dequantised(layers[name]) - layer.weight).reshape(rows.shape).abs()
                largest = rows.abs().amax(-1, keepdim=True)
                # Half of the widest gap between two values: 1/127 of the row's largest weight, or for normal
                # floats from -1 to -0.6962 of the block's.
                most = largest / 127 / 2 if kind == "int8" else largest * (1 - 0.6962) / 2
                assert (off <= most * 1.02).all()
                rounded += 1
        assert rounded > 0

    @pytest.mark.parametrize(("kind", "most"), [("int8", 0.06), ("nf4", 0.5)])
    def test_the_base_computes_what_its_dequantised_weights_do_and_about_what_the_original_does(
        self, family: Path, kind: Quantization, most: float
    ) -> None:
        quantised = Backbone.load(family, device=CPU, dtype=torch.float32, quantization=kind)
        states = states_of(quantised, None)
        twin = states_of(plain_twin(family, quantised), None)
        torch.testing.assert_close(states, twin, atol=1e-5, rtol=1e-4)
        original = states_of(Backbone.load(family, device=CPU, dtype=torch.float32), None)
        error = float((states - original).norm() / original.norm())
        assert 0 < error < most

    @pytest.mark.parametrize("kind", KINDS)
    def test_gradients_of_an_adapter_are_those_on_the_dequantised_base(
        self, family: Path, kind: Quantization
    ) -> None:
        quantised = Backbone.load(family, device=CPU, dtype=torch.float32, quantization=kind)
        gradients = []
        for backbone in (quantised, plain_twin(family, quantised)):
            backbone.add_adapter("policy", LORA, seed=1)
            disturb(backbone, "policy", scale=0.05)
            # A pass without gradients, as sampling makes it, must leave the layers as they are.
            with torch.no_grad():
                states_of(backbone, None)
            states_of(backbone, "policy").square().sum().backward()
            gradients.append(
                {name: parameter.grad for name, parameter in backbone.parameters("policy").items()}
            )
        actual, expected = gradients
        assert list(actual) == list(expected)
        for name, gradient in expected.items():
            assert gradient is not None
            assert gradient.abs().max() > 0
            assert actual[name].dtype == torch.float32
            torch.testing.assert_close(actual[name], gradient, atol=1e-4, rtol=1e-3)

    @pytest.mark.parametrize("kind", KINDS)
    def test_with_adapters_off_or_new_it_is_the_quantised_base_and_samples_as_its_twin(
        self, family: Path, kind: Quantization
    ) -> None:
        quantised = Backbone.load(family, device=CPU, dtype=torch.float32, quantization=kind)
        twin = plain_twin(family, quantised)
        before = states_of(quantised, None)
        quantised.add_adapter("policy", LORA, seed=1)
        torch.testing.assert_close(states_of(quantised, "policy"), before, atol=1e-6, rtol=0)
        disturb(quantised, "policy", scale=0.05)
        assert not torch.allclose(states_of(quantised, "policy"), before, atol=1e-3)
        assert torch.equal(states_of(quantised, None), before)
        greedy = SamplingParameters(temperature=0.0, max_tokens=8)
        texts = [rollout(model, [ROW[0].ids[:3]], greedy)[0][0].token_ids for model in (quantised, twin)]
        assert texts[0] == texts[1]
        # Rows of several adapters in one pass take the same layers.
        batch = row_of()
        half = batch.input_ids.shape[1] // 2
        with torch.no_grad(), quantised.mixing([("policy", half), (None, batch.input_ids.shape[1] - half)]):
            quantised.packed_states(batch.input_ids, batch.position_ids, batch.layout)

    @pytest.mark.parametrize("kind", KINDS)
    def test_its_own_weights_cannot_be_trained(self, family: Path, kind: Quantization) -> None:
        quantised = Backbone.load(family, device=CPU, dtype=torch.float32, quantization=kind)
        with pytest.raises(ContractError, match="the base is quantised"):
            quantised.add_adapter("policy", None, seed=0)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("method", ["reward", "preference"])
    def test_a_run_trains_a_float_adapter_that_loads_on_the_original_base(
        self, tmp_path: Path, kind: Quantization, method: Method
    ) -> None:
        base = family_folder(tmp_path / "llama", "llama", hidden_size=64, intermediate_size=128)
        run = make_run(
            tmp_path / "run",
            base,
            judgments(),
            method=method,
            settings={"max_tokens": 256},
            optimiser={"max_steps": 3, "batch_size": 4, "learning_rate": 1e-2, "evaluate_every": 0},
            quantization=kind,
        )
        assert train(run) == EXIT_FINISHED, status_of(run).message
        manifest = read_manifest(run / "checkpoint", verify=True)
        assert manifest.spec["quantization"] == kind
        plain = Backbone.load(base, device=CPU, dtype=torch.float32)
        plain.load_adapter("trained", run / "checkpoint")
        assert all(parameter.dtype == torch.float32 for parameter in plain.parameters("trained").values())
        assert not torch.allclose(states_of(plain, "trained"), states_of(plain, None), atol=1e-3)

    def test_the_estimate_counts_the_bytes_of_its_weights(self, tmp_path: Path) -> None:
        folder = family_folder(tmp_path / "llama", "llama", hidden_size=64, intermediate_size=128)
        shape = Shape.read(folder)
        assert shape is not None
        for kind in KINDS:
            backbone = Backbone.load(folder, device=CPU, dtype=torch.float32, quantization=kind)
            held = sum(map(bytes_of, set(backbone._model.modules()) - {backbone._model.lm_head}))
            parameters = sum(
                parameter.numel() for parameter in plain_twin(folder, backbone)._model.parameters()
            )
            estimated = memory_of(SftSettings(), shape, parameters=parameters, quantization=kind).base
            # The LM head is the embedding; bitsandbytes keeps the sixteen values of its code for each layer.
            assert estimated <= held <= 1.05 * estimated


def bytes_of(layer: nn.Module) -> int:
    """The bytes of a module's own tensors, scales included."""
    if not is_quantised(layer):
        return sum(
            parameter.numel() * parameter.element_size() for parameter in layer.parameters(recurse=False)
        )
    weight = layer.weight
    if layer.quantization == "int8":
        inner = [getattr(weight, name) for name in ("qdata", "scale")]
    else:
        inner = [weight.data, weight.quant_state.absmax, weight.quant_state.code]
    return sum(tensor.numel() * tensor.element_size() for tensor in inner)


# ── Refusals, and what needs no package ───────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "package"), [("nf4", "bitsandbytes"), ("int8", "torchao")])
def test_a_missing_package_is_named_with_the_remedy(
    base: Path, kind: Quantization, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ContractError, match=rf"{kind} needs the package {package} .*with the extra gpu, or pip"
    ):
        Backbone.load(base, device=CPU, dtype=torch.float32, quantization=kind)


def test_a_device_without_support_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ContractError, match="nf4 is not computed on mps"):
        refuse_unable("nf4", torch.device("mps"))
    refuse_unable("none", torch.device("mps"))


def test_a_run_says_that_the_package_is_missing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    run = make_run(tmp_path / "run", base, judgments(), quantization="nf4")
    assert train(run) == EXIT_FAILED
    assert "nf4 needs the package bitsandbytes" in status_of(run).message


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"policy": {"adapter": "none"}},
            "compute, quantization: only a frozen base can be quantised.*policy",
        ),
        ({"reward": {"adapter": "none", "features": "frozen"}}, "or reward, adapter to 'lora'"),
        ({"compute": {"sharding": "full"}}, "quantised base cannot be cut"),
    ],
)
def test_a_recipe_refuses_what_a_quantised_base_cannot_do(
    recipe: dict[str, dict[str, str]], message: str
) -> None:
    compute = {"quantization": "nf4", **recipe.get("compute", {})}
    with pytest.raises(ContractError, match=message):
        Recipe.from_json({**recipe, "compute": compute})


def test_the_estimate_of_a_base_with_few_bits_by_hand() -> None:
    shape = Shape(
        vocabulary=100,
        hidden=64,
        intermediate=128,
        layers=2,
        heads=4,
        key_heads=2,
        head_size=16,
        tied=True,
        context=512,
    )
    # q and o 64 × 64, k and v 64 × 32, gate, up and down 64 × 128: 36,864 weights a block; outputs
    # 64 + 32 + 32 + 64 + 128 + 128 + 64 = 512.
    weights, outputs = 36_864, 512
    rest = shape.parameters - 2 * weights
    settings = PreferenceSettings(optimiser=OptimiserSettings())
    bases = {kind: memory_of(settings, shape, base_bytes=2, quantization=kind).base for kind in KINDS}
    assert bases["int8"] == 2 * rest + 2 * (weights + 4 * outputs)
    assert bases["nf4"] == 2 * rest + 2 * (weights // 2 + 4 * weights // 64)
