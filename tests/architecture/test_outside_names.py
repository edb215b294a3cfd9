"""Names that checks outside the repository import stay where they are, and need no more than they promise."""

import json
import subprocess
import sys

import pytest

WITHOUT_DJANGO = {
    "training.rlhf.losses": (
        "bradley_terry davidson plackett_luce dpo dpo_plackett_luce kto policy_gradient value"
    ),
    "training.rlhf.advantages": "discounted_returns gae group_relative leave_one_out whiten",
    "training.rlhf.kl": "estimate full AdaptiveController FixedController",
    "training.rlhf.spans": "token_labels segment place_segment_rewards",
    "training.rlhf.data": "",
    "training.rlhf.model.attention": "Layout Segment",
    "training.rlhf.model.backbone": "Backbone",
    "training.rlhf.model.inspection": "inspect_folder",
    "training.rlhf.rollout": "SamplingParameters rollout",
    "training.contract": "ContractError read_manifest read_metrics",
    "training.ratings": "bradley_terry_ratings",
    "training.services.evaluation.decision": "Decision decide decide_with_model",
    "tests.tiny": "tiny_tokenizer",
    "annotation.offsets": "utf16_to_codepoint codepoint_to_utf16",
}

_PROGRAM = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
missing = [name for name in sys.argv[2:] if not hasattr(module, name)]
print(json.dumps({"missing": missing, "django": "django" in sys.modules}))
"""


@pytest.mark.parametrize("module", WITHOUT_DJANGO)
def test_a_name_that_outside_checks_import_is_there_and_needs_no_django(module):
    command = [sys.executable, "-c", _PROGRAM, module, *WITHOUT_DJANGO[module].split()]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found == {"missing": [], "django": False}
