"""Form of the page that computes scaling on paper."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from training.services.runs.measured_points import METHODS
from training.services.runs.scaling import BASES, GPUS, Plan, settings_for

_DEFAULTS: dict[str, Any] = {
    "base": "8b",
    "gpu": "h100",
    "method": "preference",
    "rank": 16,
    "micro_batch_tokens": 8192,
    "micro_batches": 1,
    "completion_tokens": 256,
    "share_of_peak": 40,
    "sharding": "none",
}


class ScalingForm(forms.Form):
    """A run on paper. Without an address it asks for DPO of 8 billion parameters."""

    base = forms.ChoiceField(
        label=_("Base model"), choices=[(key, name) for key, (name, _shape) in BASES.items()]
    )
    method = forms.ChoiceField(
        label=_("Method"),
        choices=list(METHODS.items()),
    )
    gpu = forms.ChoiceField(label=_("GPU"), choices=[(key, gpu.name) for key, gpu in GPUS.items()])
    rank = forms.IntegerField(
        label=_("Adapter rank"), min_value=0, max_value=512, help_text=_("0 trains all weights.")
    )
    micro_batch_tokens = forms.IntegerField(
        label=_("Tokens per micro-batch"), min_value=128, max_value=1_000_000
    )
    micro_batches = forms.IntegerField(label=_("Micro-batches per step and GPU"), min_value=1, max_value=1024)
    completion_tokens = forms.IntegerField(
        label=_("Tokens per sampled response"),
        min_value=1,
        max_value=32_768,
        help_text=_("Of reinforcement learning."),
    )
    share_of_peak = forms.IntegerField(
        label=_("Share of peak operations (%)"),
        min_value=1,
        max_value=100,
        help_text=_("An assumption: 30 to 50 is usual."),
    )
    sharding = forms.ChoiceField(
        label=_("Sharding"),
        choices=[
            ("none", _("none: each GPU holds the base")),
            ("full", _("full: over all GPUs")),
            ("node", _("node: over the GPUs of each node")),
        ],
        required=False,
    )
    gradient_checkpointing = forms.BooleanField(label=_("Gradient checkpointing"), required=False)

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data or _DEFAULTS)

    @property
    def plan(self) -> Plan:
        """Return the run of a valid form."""
        values = self.cleaned_data
        return Plan(
            settings=settings_for(
                values["method"],
                rank=values["rank"],
                micro_batch_tokens=values["micro_batch_tokens"],
                gradient_checkpointing=values["gradient_checkpointing"],
                completion_tokens=values["completion_tokens"],
            ),
            shape=BASES[values["base"]][1],
            gpu=GPUS[values["gpu"]],
            sharding=values["sharding"] or "none",
            micro_batches=values["micro_batches"],
            share_of_peak=values["share_of_peak"] / 100,
        )
