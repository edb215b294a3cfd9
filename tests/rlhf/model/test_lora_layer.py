"""LoRA in one piece: peft's own layer is the oracle for values and gradients."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.functional import cast_adapter_dtype, inject_adapter_in_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from training.contract.methods.common import LoraSettings
from training.rlhf.model.adapters import lora_config
from training.rlhf.model.linear_layers import AdapterSlice, LoraLinear, mixing


class Layer(nn.Module):
    """One frozen linear layer under a name that an adapter can be put on."""

    def __init__(self, dtype: torch.dtype, *, bias: bool) -> None:
        super().__init__()
        self.q_proj: Any = nn.Linear(24, 40, bias=bias, dtype=dtype).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.q_proj(x)
        return result


def pair(dtype: torch.dtype, *, bias: bool = False, dropout: float = 0.0) -> tuple[Layer, Layer]:
    """The same layer with the same adapter, ours and peft's."""
    torch.manual_seed(0)
    ours = Layer(dtype, bias=bias)
    settings = LoraSettings(rank=4, dropout=dropout, targets=("q_proj",))
    inject_adapter_in_model(lora_config(settings, blocks=1), ours, "a")
    cast_adapter_dtype(ours, "a")
    nn.init.normal_(ours.q_proj.lora_B["a"].weight, std=0.2)
    theirs = copy.deepcopy(ours)
    theirs.q_proj.__class__ = Linear
    return ours, theirs


def gradients(layer: Layer, x: Tensor, slope: Tensor) -> tuple[Tensor, list[Tensor]]:
    x = x.clone().requires_grad_(True)
    value = layer(x)
    (value * slope).sum().backward()
    weights = [layer.q_proj.lora_A["a"].weight.grad, layer.q_proj.lora_B["a"].weight.grad]
    return value.detach(), [x.grad, *weights]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_values_and_gradients_are_those_of_pefts_layer(
    dtype: torch.dtype, tolerance: float, bias: bool
) -> None:
    ours, theirs = pair(dtype, bias=bias)
    assert type(ours.q_proj) is LoraLinear
    x, slope = torch.randn(2, 7, 24).to(dtype), torch.randn(2, 7, 40).to(dtype)
    output, found_gradients = gradients(ours, x, slope)
    value, value_gradients = gradients(theirs, x, slope)
    assert output.dtype == dtype
    assert torch.allclose(output, value, rtol=tolerance, atol=tolerance)
    for ours_one, theirs_one in zip(found_gradients, value_gradients, strict=True):
        assert ours_one.dtype == theirs_one.dtype
        assert torch.allclose(ours_one, theirs_one, rtol=tolerance, atol=10 * tolerance)
    # The update is no rounding error of the base: a layer that forgot it would be seen above.
    assert (value - theirs.q_proj.base_layer(x)).abs().mean() > 0.1


def test_the_gradients_agree_with_finite_differences() -> None:
    ours, _ = pair(torch.float64)
    layer = ours.q_proj.double()
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    a, b = layer.lora_A["a"].weight, layer.lora_B["a"].weight

    def value(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(
            layer, {"lora_A.a.weight": a, "lora_B.a.weight": b}
        ):
            result: Tensor = layer(x)
        return result

    assert torch.autograd.gradcheck(value, (x, a, b))


def test_an_adapter_that_is_off_leaves_the_base_exactly() -> None:
    ours, _ = pair(torch.float32)
    x = torch.randn(5, 24)
    ours.q_proj.enable_adapters(False)
    assert torch.equal(ours(x), ours.q_proj.base_layer(x))


def test_dropout_is_left_to_peft_and_in_scoring_nothing_is_dropped() -> None:
    ours, theirs = pair(torch.float32, dropout=0.5)
    x = torch.randn(5, 24)
    for layer in (ours, theirs):
        layer.train()
    torch.manual_seed(1)
    dropped = ours(x)
    torch.manual_seed(1)
    assert torch.equal(dropped, theirs(x))
    ours.eval()
    assert not torch.allclose(dropped, ours(x))
    assert torch.allclose(ours(x), theirs.eval()(x), atol=1e-5)


def test_the_adapters_files_do_not_know_of_it() -> None:
    settings = LoraSettings(rank=4)
    plain = LoraConfig(
        r=4, lora_alpha=settings.alpha, target_modules=list(settings.targets), task_type="CAUSAL_LM"
    )
    assert lora_config(settings, blocks=3).to_dict() == plain.to_dict()


def test_a_packed_row_of_several_adapters_is_on_each_stretch_what_its_adapter_makes_of_it_alone() -> None:
    layer, _ = pair(torch.float32)
    for name, rank in (("b", 1), ("c", 7)):
        inject_adapter_in_model(
            lora_config(LoraSettings(rank=rank, targets=("q_proj",)), blocks=1), layer, name
        )
        nn.init.normal_(layer.q_proj.lora_B[name].weight, std=0.3)
    layer.q_proj.set_adapter("c")
    x = torch.randn(1, 9, 24)
    with torch.inference_mode():
        # "elsewhere" is an adapter that does not reach this layer; tokens 7 and 8 are nobody's.
        shares = [
            AdapterSlice("b", slice(0, 3)),
            AdapterSlice("elsewhere", slice(3, 4)),
            AdapterSlice("a", slice(4, 7)),
        ]
        with mixing(shares):
            mixed = layer(x)
        base = layer.q_proj.base_layer(x)
        expected = [base]
        for name in ("b", "a"):
            layer.q_proj.set_adapter(name)
            expected.append(layer(x))
        of_base, of_b, of_a = expected
    assert torch.allclose(mixed[:, 0:3], of_b[:, 0:3], atol=1e-6)
    assert torch.allclose(mixed[:, 4:7], of_a[:, 4:7], atol=1e-6)
    for tokens in (slice(3, 4), slice(7, 9)):
        assert torch.allclose(mixed[:, tokens], of_base[:, tokens], atol=1e-6)
    assert (of_a - of_b).abs().mean() > 0.1
