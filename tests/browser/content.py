"""Realistic content for the browser tests: answers with Markdown, code, lists, emoji and CRLF."""

from annotation.models import Comparison, Project
from tests import factories

QUESTION = """My green tea always tastes **bitter**. How long should it steep, and how hot should it be?

Please answer for a beginner; I have no thermometer."""

PASSAGES = [
    (
        "Green tea",
        [
            "Green tea is made from leaves that have not undergone oxidation.",
            "Steeping at 70 to 80 °C for two minutes keeps bitterness low.",
            "Hotter water releases more catechins, which taste bitter.",
        ],
    ),
    (
        "Boiling",
        [
            "Water left to stand for five minutes after boiling has about 80 °C.",
            "Small bubbles begin to rise from the bottom of a pot at about 75 °C.",
        ],
    ),
]

ANSWERS = [
    """Steep it for **about two minutes** in water that has cooled a little 🍵.

1. Boil the water.
2. Let it stand for *five minutes*; it then has about 80 °C.
3. Pour it over the leaves and wait two minutes.

If it is still bitter, use fewer leaves or less time. Hotter water releases more catechins, and these
are what tastes bitter.""",
    """## Green tea

Green tea should be boiled for ten minutes so that all the flavour comes out. Boiling water is always best
because it kills the germs in the leaves.

- Use *boiling* water
- Wait **10 minutes**
- Squeeze the bag & stir

> Tea is the most popular drink in the world after water.

Tea is also very healthy, and many people in China drink it. China is a large country in Asia.""",
    """Here is a small program that tells you how long to wait:

```python
def minutes(celsius: float) -> float:
    \"\"\"Two minutes at 80 °C, less when it is hotter.\"\"\"
    return 2.0 if celsius <= 80 else max(0.5, 2.0 - (celsius - 80) / 10)
```

| water | time |
|:------|-----:|
| 70 °C | 3 min |
| 80 °C | 2 min |
| 90 °C | 1 min |

Call `minutes(80)` and use a timer ⏱️.""",
    "I am sorry, but I cannot help with that.\r\n\r\nTea is a drink. Tea is a drink. You should ask a tea "
    "seller \N{WOMAN}\N{ZERO WIDTH JOINER}\N{SCHOOL} about   the tea.\r\n\r\nThank you & good luck!",
]


def make_items(project: Project) -> tuple[Comparison, Comparison]:
    """A pair that comes first, and a ranking of four that comes after it."""
    prompt = factories.make_prompt(project, QUESTION, context=PASSAGES)
    pair = factories.make_comparison(project, ANSWERS[:2], prompt=prompt, priority=2)
    second = factories.make_prompt(
        project, "Explain in one paragraph why tea turns bitter.", context=PASSAGES
    )
    ranking = factories.make_comparison(project, ANSWERS, prompt=second, priority=1)
    return pair, ranking
