"""BLEU, chrF and ROUGE as rewards, against scores worked out by hand."""

import pytest

from training.rlhf.rewards.text_rewards import Bleu, Chrf, Rouge


def value(reward, completion: str, reference) -> float:
    score: float = reward([()], [completion], [reference])[0].value
    return score


@pytest.mark.parametrize("reward", [Bleu(), Chrf(), Chrf(word_order=2), Rouge()])
def test_a_text_fits_itself_wholly_and_a_foreign_one_not_at_all(reward):
    assert value(reward, "the cat sat down", "the cat sat down") == pytest.approx(1)
    assert value(reward, "", "the cat sat down") == 0


@pytest.mark.parametrize("reward", [Bleu(), Chrf(), Rouge()])
def test_the_best_of_several_references_counts(reward):
    assert value(reward, "the cat sat down", ["xyz", "the cat sat down"]) == pytest.approx(1)


@pytest.mark.parametrize("reward", [Bleu(), Chrf(), Rouge()])
def test_without_a_reference_no_metric_scores(reward):
    scores = reward([()] * 2, ["a", "b"], [None, ""])
    assert not any(score.scored for score in scores)


def test_bleu_by_hand():
    # n-gram precisions 4/5, 3/4, 2/3, 1/2; no brevity penalty: (1/5)^(1/4)
    assert value(Bleu(), "a b c d e", "a b c d f") == pytest.approx(0.2**0.25)


def test_bleu_of_a_short_answer_leaves_longer_orders_out():
    # One of one word right, two wanted: brevity penalty e^(1 − 2/1)
    assert value(Bleu(), "yes", "yes indeed") == pytest.approx(0.36787944)


def test_chrf_by_hand():
    # Single characters: 1 of 2 right; pairs: 0 of 1; mean precision = mean recall = 1/4
    assert value(Chrf(), "ab", "ac") == pytest.approx(0.25)


def test_rouge_l_by_hand():
    # Longest common subsequence "the cat": precision 2/3, recall 2/5, F = 2 · (4/15) / (16/15)
    assert value(Rouge(), "the cat sat", "the cat on the mat") == pytest.approx(0.5)


def test_rouge_1_counts_words_and_stems_if_told():
    # "running" and "runs" have one stem: "dogs" apart, 1 of 2 words, else 0 of 2.
    assert value(Rouge(kind="rouge1"), "running cats", "dogs runs") == pytest.approx(0.5)
    assert value(Rouge(kind="rouge1", stem=False), "running cats", "dogs runs") == 0


def test_rouge_does_not_pretend_to_read_other_scripts():
    assert not Rouge()([()], ["猫"], ["猫"])[0].scored
