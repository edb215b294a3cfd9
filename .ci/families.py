"""Write the guide's table of model families: of each a tiny random base is inspected as one that is added.

.venv/bin/python .ci/families.py

Takes some minutes. Which families compute what transformers computes is a long test:
`tests/rlhf/model/test_architectures.py`.
"""

import logging
import signal
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "webapp/guide/reference/families.md"
LONGEST = 120
"""Seconds for one family."""

import torch  # noqa: E402 - the checkout is no installed package
import transformers  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from tests.rlhf.model.architectures import NotTinyError, architecture_folder  # noqa: E402
from tests.rlhf.model.whole_models import WHOLE_KINDS, whole_model  # noqa: E402
from training.contract import ContractError  # noqa: E402
from training.rlhf.model.backbone import Backbone  # noqa: E402
from training.rlhf.model.inspection import inspect_folder  # noqa: E402

HEAD = """# Families of base models

Written by `.ci/families.py` with transformers {version}. Of every family that writes text a tiny base
with random weights was inspected as one that is [added](../how-to/add-a-base-model.md). The long tests
compare each that is accepted with transformers' own code: states of rows, greedy responses and the
log-probability of every sampled token.

**Packed**: a prompt is read once for all its responses, and rows have no padding. **Padded**: the code of
transformers reads every response behind its prompt, which takes longer. A tiny base tells nothing of a
family's real weights; a base is inspected when it is added.

"""

WHOLES = """## Models that also read images

Their text part is trained and served where it stands. Of these a tiny one computed the same logits by its
text part as by the whole without an image:

{used}

Refused, because transformers has no model of their text alone, or because that one computes other logits:

{refused}

Not tried, because a tiny one cannot be made or computes nothing without an image:

{untried}
"""


class TooLongError(Exception):
    """A family took more than `LONGEST` seconds."""


def stop(_number: int, _frame: object) -> None:
    """End what runs."""
    raise TooLongError


def group(kind: str, folder: Path) -> tuple[str, str]:
    """Return the heading that a family stands under, and a remark."""
    signal.alarm(LONGEST)
    try:
        return ("Packed" if inspect_folder(architecture_folder(folder, kind))["packs"] else "Padded"), ""
    except NotTinyError:
        return "Not tried: their configurations are not cut down by the usual names of sizes", ""
    except ContractError as error:
        reason = str(error).replace(f"{folder}: ", "").removeprefix(f"model type {kind!r} ")
        return "Refused", reason.split("; ")[0]
    except TooLongError:
        return f"Not tried: longer than {LONGEST} seconds", ""
    finally:
        signal.alarm(0)


def group_of_whole(kind: str, folder: Path) -> str:
    """Return the place in `WHOLES` of a family that also reads images."""
    signal.alarm(LONGEST)
    ids = torch.arange(3, 20)[None]
    try:
        whole = whole_model(folder, kind)
        backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
        with torch.no_grad():
            states = backbone.hidden_states(ids, torch.ones_like(ids)).states
            torch.testing.assert_close(
                backbone.logits(states), whole(input_ids=ids).logits, rtol=0, atol=1e-4
            )
        return "used"
    except (ContractError, AssertionError):
        return "refused"
    except Exception as error:
        # Some wholes compute nothing without an image, or need packages that are not there.
        print(kind, error, flush=True)
        return "untried"
    finally:
        signal.alarm(0)


def main() -> None:
    """Inspect all families and write the page."""
    signal.signal(signal.SIGALRM, stop)
    warnings.filterwarnings("ignore")
    logging.getLogger("rondo.trainer").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {"Packed": [], "Padded": [], "Refused": []}
    with tempfile.TemporaryDirectory() as parent:
        for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
            heading, remark = group(kind, Path(parent) / kind)
            found.setdefault(heading, []).append(f"`{kind}`" + (f": {remark}" if remark else ""))
            print(kind, heading, remark, flush=True)
        wholes: dict[str, list[str]] = {"used": [], "refused": [], "untried": []}
        for kind in WHOLE_KINDS:
            place = group_of_whole(kind, Path(parent) / f"whole-{kind}")
            wholes[place].append(f"`{kind}`")
            print(kind, place, flush=True)
    page = HEAD.format(version=transformers.__version__)
    for heading, kinds in found.items():
        listed = "\n".join(f"- {kind}" for kind in kinds)
        text = listed if heading == "Refused" else textwrap.fill(", ".join(kinds), width=110)
        page += f"## {heading} ({len(kinds)})\n\n{text}\n\n"
    page += WHOLES.format(
        **{place: textwrap.fill(", ".join(kinds), width=110) for place, kinds in wholes.items()}
    )
    PAGE.write_text(page.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
