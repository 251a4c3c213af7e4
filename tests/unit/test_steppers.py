"""Steppers by themselves: every question is answered, once, whoever answers it."""

import itertools
import threading
from collections import Counter
from typing import Any

import pytest

from heddle import subject
from heddle.producers.steppers import ThreadStepper
from tests.helpers import eventually


class Echo:
    def __init__(self) -> None:
        self.closed = False

    def reset(self, *, seed: int) -> tuple[str, int]:
        return "reset", seed

    def step(self, choice: Any) -> tuple[str, Any]:
        return "step", choice

    def close(self) -> None:
        self.closed = True


class Held(Echo):
    """Answers a step once somebody lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def step(self, choice: Any) -> tuple[str, Any]:
        assert self.go_on.wait(30)
        return super().step(choice)


@pytest.mark.parametrize(("envs", "threads"), [(1, 1), (6, 6), (6, 2), (6, 1), (16, 5)])
def test_every_question_is_answered_once_however_few_the_threads(envs: int, threads: int) -> None:
    made = [Echo() for _ in range(envs)]
    stepper, told, numbers = ThreadStepper(made, threads), Counter[Any](), itertools.count()
    asked = Counter[Any]()
    for env in range(envs):
        stepper.reset(env, env)
        asked[env, ("reset", env)] += 1
    while told.total() < 3000:  # a question that is left lying stops this for good
        answers = stepper.answers(30, most=envs)
        assert answers
        for env, answer in answers:
            told[env, answer] += 1
            number = next(numbers)
            stepper.step(env, number)
            asked[env, ("step", number)] += 1
    while told.total() < asked.total():
        told.update(answers := stepper.answers(30, most=envs))
        assert answers
    assert told == asked
    stepper.close()
    assert all(env.closed for env in made)


def test_a_thread_within_a_stuck_environment_leaves_the_others_questions_to_the_rest() -> None:
    held = Held()
    stepper, before = ThreadStepper([held, Echo(), Echo()], 2), threading.active_count()
    stepper.step(0, "slow")
    for round_ in range(50):
        stepper.step(1, round_)
        stepper.step(2, round_)
        got = [one for _ in range(2) for one in stepper.answers(30, most=1)]
        assert sorted(got) == [(1, ("step", round_)), (2, ("step", round_))]
    held.go_on.set()
    assert stepper.answers(30, most=3) == [(0, ("step", "slow"))]
    stepper.close()
    eventually(lambda: threading.active_count() == before - 2)


class Asking(Echo):
    """Answers with what the thread that resets it is at work on."""

    def reset(self, *, seed: int) -> tuple[str, Any]:
        return "about", subject.here()


def test_what_environments_say_in_threads_is_about_the_shard_for_which_those_were_made() -> None:
    with subject.about({"shard": 3}):
        stepper = ThreadStepper([Asking(), Asking()], 2)
    answers = list[tuple[int, Any]]()
    for env in range(2):
        stepper.reset(env, 1)
    while len(answers) < 2:
        answers += stepper.answers(30, most=2)
    stepper.close()
    assert sorted(env for env, _ in answers) == [0, 1]
    assert [told for _, told in answers] == [("about", {"shard": 3})] * 2
