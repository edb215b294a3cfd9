"""Names that checks outside the repository import stay where they are, and need no more than they promise."""

import json
import subprocess
import sys

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
import importlib, json, pkgutil, sys
import training.rlhf

def foreign():
    packages = ("django", "rest_framework", "celery", "webapp")
    return sorted(name for name in sys.modules if name.split(".")[0] in packages)

wrong = {}
for name, members in json.loads(sys.argv[1]).items():
    module = importlib.import_module(name)
    missing = [member for member in members.split() if not hasattr(module, member)]
    if missing or foreign():
        wrong[name] = [missing, foreign()]
names = {name for name in sys.modules if name.startswith("annotation.")}
for found in pkgutil.walk_packages(training.rlhf.__path__, "training.rlhf."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
        if foreign():
            wrong[found.name] = foreign()
# Of annotation the trainer knows the record of a judgment, and statistics.
known = ("annotation.record", "annotation.agreement")
new = {name for name in sys.modules if name.startswith("annotation.")} - names
wrong |= {name: [] for name in new if not name.startswith(known)}
print(json.dumps(wrong))
"""


def test_names_that_outside_checks_import_and_all_of_the_trainer_need_no_django():
    """import-linter reads imports; this one also sees what a module loads by a roundabout way."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(WITHOUT_DJANGO)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {}
