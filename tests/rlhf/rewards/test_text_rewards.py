"""Rewards that are computed from texts alone: rules, metrics, mathematics."""

import math
import threading
import time

import pytest

from training.contract.snapshot import Message
from training.rlhf.rewards.combination import FunctionReward
from training.rlhf.rewards.protocol import Guarded, Score, ScoredSegment
from training.rlhf.rewards.text_rewards import (
    Bleu,
    Chrf,
    ExactMatch,
    Length,
    LineCount,
    Mathematics,
    Pattern,
    Rouge,
    ThinkAnswerFormat,
    tagged_answer,
)

# ── The rules that score a completion by itself, and what becomes of a reward that raises ──

PROMPT = (Message(role="user", content="Reverse the name: Ada"),)
NAN = math.nan


def scores(reward, completions, references=None) -> list[Score]:
    references = [None] * len(completions) if references is None else references
    result: list[Score] = reward([PROMPT] * len(completions), completions, references)
    return result


def values(reward, completions, references=None) -> list[float]:
    return [score.value for score in scores(reward, completions, references)]


def score_by_length(prompts, completions, references):
    """A user's reward: gives nothing for an empty completion, and falls over a long one."""
    if any(len(completion) > 5 for completion in completions):
        raise RuntimeError("too long")
    return [len(completion) or None for completion in completions]


not_a_function = 3


def test_exact_match_is_all_or_nothing():
    assert values(ExactMatch(), [" adA\n", "ada", ""], ["adA"] * 3) == [1, 0, 0]


def test_exact_match_can_mind_white_space_and_overlook_case():
    assert values(ExactMatch(strip=False), [" adA", "adA"], ["adA"] * 2) == [0, 1]
    assert values(ExactMatch(ignore_case=True), ["STRASSE"], ["straße"]) == [1]


def test_exact_match_takes_any_of_several_references():
    assert values(ExactMatch(), ["two", "2", "3"], [["2", "two"]] * 3) == [1, 1, 0]


def test_without_a_reference_exact_match_cannot_score():
    results = scores(ExactMatch(), ["a", "b", "c"], [None, "  ", []])
    assert [score.scored for score in results] == [False] * 3
    assert results[0].reason == "the prompt has no reference text"


def test_exact_match_can_look_inside_the_answer_tags():
    reward = ExactMatch(in_answer_tags=True)
    answers = ["<think>2 + 2</think><answer> 4 </answer>", "4", "<answer>4</answer>"]
    assert values(reward, answers, ["4"] * 3) == [1, 0, 0]


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>why</think><answer>42</answer>", "42"),
        ("\n<think>\nlong\nthought\n</think>\n\n<answer>\n42\n</answer>\n", "42"),
        ("<think></think><answer></answer>", ""),
        ("<think>why</think> so <answer>42</answer>", None),
        ("first <think>why</think><answer>42</answer>", None),
        ("<think>why</think><answer>42</answer> done", None),
        ("<answer>42</answer><think>why</think>", None),
        ("<think>a</think><think>b</think><answer>42</answer>", None),
        ("<think>a</think><answer>1</answer><answer>42</answer>", None),
        ("<think>a<answer>b</think><answer>42</answer>", None),
        ("<think>why<answer>42</answer>", None),
        ("", None),
    ],
)
def test_the_format_is_think_then_answer_and_nothing_else(completion, answer):
    assert tagged_answer(completion) == answer
    assert values(ThinkAnswerFormat(), [completion]) == [float(answer is not None)]


def test_the_format_is_read_in_no_time_however_long_the_text():
    started = time.thread_time()
    assert tagged_answer("<think>" * 20_000) is None
    assert tagged_answer("<think></think>" + " " * 200_000 + "x") is None
    assert time.thread_time() - started < 5


def test_a_pattern_is_found_anywhere_or_must_match_the_whole():
    assert values(Pattern(pattern=r"\d+"), ["a 12", "none"]) == [1, 0]
    assert values(Pattern(pattern=r"\d+", whole=True), ["12", "a 12"]) == [1, 0]


def test_a_pattern_that_would_take_for_ever_is_stopped_and_cannot_score():
    # Every way to cut 40 commas' fields into 29 is tried: of the order of 10^9 steps.
    reward = Pattern(pattern="(.*?,){29}P", seconds=0.2)
    started = time.thread_time()
    results = scores(reward, ["1," * 40, "1," * 29 + "P"])
    assert time.thread_time() - started < 5
    assert [score.scored for score in results] == [False, True]
    assert "0.2 s" in results[0].reason


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match="is no regular expression"):
        Pattern(pattern="(")


def test_lines_score_by_how_near_their_number_comes():
    # Wanted 4: 4 lines 1, 3 or 5 lines 1 − 1/4, 12 lines 1 − 8/4 < 0. White space is no line.
    completions = ["a\nb\nc\nd", "a\n\n  \nb\nc\n", "a\nb\nc\nd\ne", "x\n" * 12, ""]
    assert values(LineCount(wanted=4), completions) == [1, 0.75, 0.75, 0, 0]


def test_the_number_of_lines_can_stand_in_the_reference():
    assert values(LineCount(), ["a\nb", "a\nb"], [2, " 4 "]) == [1, 0.5]
    for reference in (None, "few", 0, True, 2.0, ["2"]):
        assert not scores(LineCount(), ["a"], [reference])[0].scored


def test_length_scores_1_inside_and_falls_in_a_straight_line_outside():
    reward = Length(least=2, most=4, slack=2)
    completions = ["a b", "a b c d", "a b c d e", "a b c d e f", "a", ""]
    assert values(reward, completions) == [1, 1, 0.5, 0, 0.5, 0]
    assert values(Length(most=3), ["a b c", "a b c d"]) == [1, 0]
    assert values(Length(most=3, unit="characters"), ["äöü", "a b c"]) == [1, 0]


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ValueError, match="must be in order"):
        Length(least=5, most=4)
    with pytest.raises(ValueError, match="'words' or 'characters'"):
        Length(most=4, unit="tokens")


def test_a_reward_that_raises_costs_only_the_sample_it_raises_for():
    reward = Guarded(FunctionReward(f"{__name__}.score_by_length", allowed=[f"{__name__}.score_by_length"]))
    results = scores(reward, ["abc", "far too long", "", "ab", "longer than five"])
    assert [score.scored for score in results] == [True, False, False, True, False]
    assert [results[0].value, results[3].value] == [3, 2]
    assert results[1].reason == "RuntimeError: too long"
    assert reward.failures == {"RuntimeError: too long": 2}


def test_a_reward_that_gives_too_few_scores_is_not_believed():
    reward = Guarded(lambda prompts, completions, references: [])
    results = scores(reward, ["a", "b"])
    assert not any(score.scored for score in results)
    assert results[0].reason == "ValueError: the reward gave 0 scores for 1 completions"


def test_ctrl_c_inside_a_reward_stops_the_run():
    def interrupted(prompts, completions, references):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scores(Guarded(interrupted), ["a"])


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_an_infinite_score_is_refused(bad):
    with pytest.raises(ValueError, match="must be finite"):
        Score(bad)
    with pytest.raises(ValueError, match="finite values"):
        Score(0.0, (ScoredSegment(3, bad),))


def test_segments_out_of_order_are_refused():
    with pytest.raises(ValueError, match="in order"):
        Score(0.0, (ScoredSegment(5, 1.0), ScoredSegment(3, 1.0)))


def test_a_function_that_is_not_on_the_allow_list_is_not_even_imported():
    with pytest.raises(PermissionError, match="not on the allow-list"):
        FunctionReward("no_such_package.reward", allowed=["no_such_package"])


@pytest.mark.parametrize("name", ["missing", "not_a_function"])
def test_a_path_that_leads_to_no_function_is_refused(name):
    path = f"{__name__}.{name}"
    with pytest.raises(ValueError, match="function"):
        FunctionReward(path, allowed=[path])


# ── BLEU, chrF and ROUGE as rewards, against scores worked out by hand ──


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


# ── Results compared as mathematics, in a process that may be killed ──


@pytest.fixture(scope="module")
def mathematics():
    with Mathematics() as reward:
        yield reward


def score(reward, completion: str, reference):
    return reward([()], [completion], [reference])[0]


@pytest.mark.parametrize(
    ("completion", "reference", "equal"),
    [
        ("so the answer is \\boxed{\\frac{1}{2}}", "0.5", 1),
        ("It is $\\frac{1}{\\sqrt{2}}$.", "\\sqrt{2}/2", 1),
        ("First 3, then 12", "12", 1),
        ("First 12, then 3", "12", 0),
        ("$\\{2, 1\\}$", "\\{1,2\\}", 1),
        ("$x = 5$", 5, 1),
        ("$(x+1)^2$", "x^2+2x+1", 1),
        ("$(x+1)^2$", "x^2+1", 0),
        ("I do not know", "7", 0),
        ("", "7", 0),
    ],
)
def test_results_are_equal_as_mathematics_not_as_text(mathematics, completion, reference, equal):
    assert score(mathematics, completion, reference).value == equal


@pytest.mark.parametrize("reference", [None, "", "nobody can tell", ["1"]])
def test_without_a_reference_that_can_be_read_nothing_is_scored(mathematics, reference):
    assert not score(mathematics, "7", reference).scored


def test_only_what_stands_in_the_answer_tags_counts_if_told():
    with Mathematics(in_answer_tags=True) as reward:
        assert score(reward, "<think>7, no, 8</think><answer>\\frac{16}{2}</answer>", "8").value == 1
        assert score(reward, "<think>8</think><answer>7</answer>", "8").value == 0
        assert score(reward, "8", "8").value == 0


def test_a_tower_of_powers_is_stopped_and_the_next_is_scored():
    with Mathematics(seconds=3) as reward:
        assert score(reward, "\\boxed{2}", "2").value == 1
        started = time.monotonic()
        stopped = score(reward, "$9^{9^{9^{9}}}$", "5")
        assert time.monotonic() - started < 60
        assert not stopped.scored
        assert "3 s" in stopped.reason
        # In a new process.
        assert score(reward, "\\boxed{2}", "2").value == 1


def test_it_works_outside_the_main_thread(mathematics):
    values = []
    thread = threading.Thread(target=lambda: values.append(score(mathematics, "\\boxed{4}", "2+2").value))
    thread.start()
    thread.join(60)
    assert values == [1]


def test_a_closed_reward_leaves_no_process():
    reward = Mathematics()
    score(reward, "1", "1")
    process = reward._process
    assert process.poll() is None
    reward.close()
    assert process.poll() is not None
