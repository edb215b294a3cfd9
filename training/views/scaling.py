"""Scaling on paper: memory, communication and efficiency of a run on 1 to 512 GPUs."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from training.forms.scaling import ScalingForm
from training.services.runs.measured_points import compared_points
from training.services.runs.scaling import GPU_COUNTS, fewest_gpus, scaling_of
from training.views.access import require_manager


@require_safe
def scaling(request: Request) -> HttpResponse:
    """Compute a run of the form's values on each number of GPUs. For managers of any project."""
    require_manager(request.user, None)
    form = ScalingForm(request.GET)
    context = {"form": form, "rows": [], "fewest": None, "plan": None, "measured": [*compared_points()]}
    if form.is_valid():
        plan = form.plan
        context |= {
            "plan": plan,
            "rows": [scaling_of(plan, gpus) for gpus in GPU_COUNTS],
            "fewest": fewest_gpus(plan),
        }
    return render(request, "training/scaling.html", context)
