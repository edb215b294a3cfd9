"""A question that names its context is distinguished from one that does not."""

import pytest

from annotation.text.rendering import refers_to_context


@pytest.mark.parametrize(
    "question",
    [
        "According to the passage, who won?",
        "Use the context above.",
        "Summarise the following text.",
        "What does the text below say about tea?",
        "Which of the DOCUMENTS names a date?",
        "Wer gewinnt laut dem Abschnitt?",
        "Fasse den folgenden Text zusammen.",
        "Was steht im Kontext?",
    ],
)
def test_a_question_that_names_its_context_refers_to_it(question: str):
    assert refers_to_context(question)


@pytest.mark.parametrize(
    "question",
    [
        "Why is tea bitter?",
        # Parts of words, and texts that are to be written.
        "Decontextualised learning: good or bad?",
        "Write a text about resourcefulness.",
        "Wie schreibt man einen Text?",
        "",
    ],
)
def test_a_question_without_a_reference_does_not(question: str):
    assert not refers_to_context(question)
