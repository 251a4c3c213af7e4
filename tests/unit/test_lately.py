"""What a worker tells of its last seconds: by a clock of the test's own, from counters as a worker keeps them."""

from heddle.producers.desk import Counters
from heddle.producers.lately import WINDOW_S, Late, Lately


class Told:
    """A worker that is looked at once a second."""

    def __init__(self, *, begins: float = 100.0) -> None:
        self.counters, self.now, self.lately = Counters(), begins, Lately()
        self.late = self.lately.look(self.counters, self.now, is_held=True, is_playing=False)

    def go_on(
        self, seconds: int, *, steps: int = 0, played: float = 0.0, waited: float = 0.0, held: bool = True
    ) -> Late:
        """So many seconds, each with so many steps, and so much of it played and waited."""
        for _ in range(seconds):
            self.now += 1.0
            self.counters.steps += steps
            self.counters.play_s += played
            self.counters.wait_s += waited
            self.late = self.lately.look(self.counters, self.now, is_held=held, is_playing=played > 0)
        return self.late

    def plays(self, batches: int, *, each_s: int, steps: int) -> Late:
        """Batches that take long: counted when they are over."""
        for _ in range(batches):
            self.go_on(each_s - 1, played=1.0)
            self.go_on(1, steps=steps, played=1.0)
        return self.late


def test_a_worker_that_plays_tells_its_steps_by_the_clock_and_what_one_takes() -> None:
    late = Told().go_on(30, steps=100, played=0.6, waited=0.3)
    assert (late.steps_per_second, late.ms_per_step) == (100.0, 6.0)
    assert abs(late.waits - 0.3) < 0.01


def test_one_that_got_faster_tells_the_new_speed_within_the_window() -> None:
    told = Told()
    told.go_on(600, steps=10, played=1.0)
    late = told.go_on(12, steps=1_000, played=1.0)
    assert (late.steps_per_second, late.ms_per_step) == (1_000.0, 1.0)


def test_one_without_shards_tells_no_speed_and_no_waits_however_fast_it_was() -> None:
    told = Told()
    told.go_on(60, steps=500, played=1.0)
    late = told.go_on(1, held=False)
    assert (late.steps_per_second, late.waits, late.ms_per_step) == (0.0, 0.0, 0.0)
    assert late.seconds > 0, "it does tell"
    # And what comes next is not mixed with the pause
    assert told.go_on(3, steps=50, played=1.0).steps_per_second == 50.0


def test_after_a_stall_waits_are_nine_tenths_within_fifteen_seconds_and_the_speed_is_0() -> None:
    told = Told()
    told.go_on(3_600, steps=500, played=1.0)
    late = told.go_on(15, waited=1.0)
    assert late.waits >= 0.9 and late.steps_per_second == 0.0
    assert late.ms_per_step == 2.0, "what a step takes is known still"
    late = told.go_on(15, steps=500, played=1.0)
    assert (late.waits, late.steps_per_second) == (0.0, 500.0)


def test_batches_that_take_longer_than_the_window_have_one_steady_speed() -> None:
    told = Told()
    told.plays(3, each_s=40, steps=4_000)
    seen = {told.go_on(1, played=1.0).steps_per_second for _ in range(39)}
    assert seen == {100.0}


def test_a_call_that_hangs_lowers_the_speed_though_no_batch_ends() -> None:
    told = Told()
    told.go_on(60, steps=100, played=1.0)
    assert told.go_on(40, played=1.0).steps_per_second < 3.0
    assert told.late.waits == 0.0


def test_a_barrier_every_twenty_seconds_tells_the_mean_and_not_a_burst() -> None:
    told, seen = Told(), list[float]()
    for _ in range(5):
        seen = [told.go_on(1, waited=1.0).steps_per_second for _ in range(19)]
        seen.append(told.go_on(1, steps=2_000, played=1.0).steps_per_second)
    assert set(seen) == {100.0}


def test_many_heartbeats_at_once_are_no_window() -> None:
    told = Told()
    told.go_on(20, steps=100, played=1.0)
    for _ in range(50):
        told.now += 0.001
        late = told.lately.look(told.counters, told.now, is_held=True, is_playing=True)
    assert 90.0 <= late.steps_per_second <= 110.0
    assert late.seconds >= WINDOW_S
