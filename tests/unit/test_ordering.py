"""In which order the batches of a shard are consumed, and what counts as a repeat or as missing."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from heddle.consumers.marks import OWNERS_KEPT, Mark, entry_order, follows
from heddle.consumers.ordering import Ordering


@dataclass(frozen=True, slots=True)
class Entry:
    """A pointer, as far as ordering looks at it."""

    entry_id: str
    shard: int
    epoch: int
    seq: int
    nonce: str = "n"


def line(*places: tuple[int, int], shard: int = 0) -> list[Entry]:
    return [Entry(f"{1000 + i}-{shard}", shard, epoch, seq) for i, (epoch, seq) in enumerate(places)]


def read_on(ordering: "Ordering[Entry]") -> list[Entry]:
    """What comes out once everything that is pending was looked for."""
    given = ordering.ready()
    ordering.declare_lost(ordering.holes())
    return given + ordering.ready()


def places(entries: list[Entry]) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.seq) for entry in entries]


def test_entries_come_out_in_the_order_of_their_shard_however_they_were_read() -> None:
    entries = line((1, 1), (1, 2), (1, 3), (5, 4), (5, 5))
    for order in itertools.permutations(entries):
        ordering: Ordering[Entry] = Ordering()
        out = []
        for entry in order:
            assert ordering.offer([entry]) == []
            out += ordering.ready()
        out += read_on(ordering)
        assert places(out) == places(entries)
        assert ordering.holes() == []


def test_a_hole_blocks_its_own_shard_only_until_it_is_found() -> None:
    ordering: Ordering[Entry] = Ordering()
    first, second, third = line((1, 1), (1, 2), (1, 3))
    other = line((9, 1), (9, 2), shard=1)
    ordering.offer([first, third, *other])
    assert [entry.shard for entry in ordering.ready()] == [0, 1, 1]
    (hole,) = ordering.holes()
    assert (hole.shard, hole.before, hole.after, hole.missing) == (0, Mark(1, "n", 1), Mark(1, "n", 3), 1)
    assert not hole.resumed
    ordering.offer([second])
    assert places(ordering.ready()) == [(1, 2), (1, 3)]


def test_a_hole_declared_lost_lets_the_rest_pass() -> None:
    ordering: Ordering[Entry] = Ordering()
    entries = line((1, 1), (1, 5), (1, 6))
    ordering.offer(entries)
    ordering.ready()
    holes = ordering.holes()
    assert holes[0].missing == 3
    ordering.declare_lost(holes)
    assert places(ordering.ready()) == [(1, 5), (1, 6)]
    assert ordering.holes() == []


def test_a_hole_among_what_an_earlier_trainer_was_given_is_told_apart() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 4)})
    left = line((1, 5), (1, 7), (1, 9))
    ordering.inherit(left)
    ordering.offer(left)
    for given, missing in ([5], 1), ([7], 1):
        assert [entry.seq for entry in ordering.ready()] == given
        (hole,) = ordering.holes()
        assert hole.resumed and hole.missing == missing
        ordering.declare_lost([hole])
    # and behind it, too: the broker may have been told of 10 and 11 before that trainer died
    ordering.offer(line((1, 12)))
    assert [entry.seq for entry in ordering.ready()] == [9]
    (hole,) = ordering.holes()
    assert hole.resumed and hole.missing == 2
    # but what is missing between two batches that were read by this one is lost
    ordering.declare_lost([hole])
    ordering.offer(line((1, 14)))
    assert [entry.seq for entry in ordering.ready()] == [12]
    assert not ordering.holes()[0].resumed


def test_a_hole_right_after_a_resume_is_told_apart() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 4)})
    ordering.offer(line((1, 6)))
    assert ordering.ready() == []
    assert ordering.holes()[0].resumed


def test_what_a_mark_covers_is_a_repeat() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(7, "n", 5)})
    entries = line((3, 2), (7, 5), (7, 6))
    assert places(ordering.offer(entries)) == [(3, 2), (7, 5)]
    assert places(ordering.ready()) == [(7, 6)]


def test_the_same_seq_under_a_higher_epoch_is_new_data() -> None:
    # The broker lost (1, 4) and (1, 5) after they were consumed; the next owner played them anew.
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 5)})
    assert ordering.offer(line((2, 4), (2, 5), (2, 6))) == []
    assert places(read_on(ordering)) == [(2, 4), (2, 5), (2, 6)]


def test_what_a_new_owner_gave_first_is_waited_for_where_the_broker_lost_the_tail() -> None:
    # (2, 4) was read by somebody else: only a look for it tells that (2, 5) is not the new owner's first.
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 5)})
    first, *others = line((2, 4), (2, 5), (2, 6))
    ordering.offer(others)
    assert ordering.ready() == []
    assert [(hole.after.place, hole.missing) for hole in ordering.holes()] == [((2, 5), 0)]
    assert ordering.offer([first]) == []
    assert places(read_on(ordering)) == [(2, 4), (2, 5), (2, 6)]


def test_what_a_new_owner_gave_first_is_waited_for_where_just_one_batch_was_lost() -> None:
    # (1, 5) was trained and forgotten by the broker, (2, 5) was read by somebody else: (2, 6) only looks like the next.
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 5)})
    first, second = line((2, 5), (2, 6))
    ordering.offer([second])
    assert ordering.ready() == []
    assert ordering.offer([first]) == []
    assert places(read_on(ordering)) == [(2, 5), (2, 6)]


def test_the_same_epoch_under_another_nonce_is_new_data() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 5)})
    assert ordering.offer([Entry("7-0", 0, 1, 5, nonce="m")]) == []
    assert len(read_on(ordering)) == 1


def test_an_entry_in_hand_is_not_a_repeat_until_it_is_forgotten() -> None:
    ordering: Ordering[Entry] = Ordering()
    entries = line((1, 1), (1, 2))
    ordering.offer(entries)
    ordering.ready()
    assert ordering.offer(entries) == []  # a take-over finds them pending
    ordering.settle(entries[0])
    assert ordering.offer(entries) == []  # trained, and waiting for the checkpoint to be acked
    ordering.forget(entries[0])
    assert ordering.offer(entries) == [entries[0]]


def test_one_batch_under_two_entry_ids_is_given_out_once() -> None:
    ordering: Ordering[Entry] = Ordering()
    first, again = Entry("5-0", 0, 1, 1), Entry("6-0", 0, 1, 1)
    assert ordering.offer([first, again]) == [again]
    assert ordering.ready() == [first]
    assert ordering.ready() == []


def test_marks_stand_at_the_last_entry_up_to_which_all_are_settled() -> None:
    ordering: Ordering[Entry] = Ordering()
    entries = line((1, 1), (1, 2), (1, 3))
    ordering.offer(entries)
    ordering.ready()
    assert ordering.marks() == {}
    ordering.settle(entries[1])  # a stale one is set aside before its elder is trained
    assert ordering.marks() == {}
    assert not ordering.covered(entries[1])
    ordering.settle(entries[0])
    assert ordering.marks() == {0: Mark(1, "n", 2)}
    assert ordering.covered(entries[1])
    assert not ordering.covered(entries[2])


def test_read_but_blocked_entries_never_move_a_mark() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 1)})
    ordering.offer(line((1, 3)))
    ordering.ready()
    assert ordering.marks() == {0: Mark(1, "n", 1)}
    assert ordering.num_waiting == 1


@pytest.mark.parametrize(
    ("before", "after", "follow"),
    [
        (None, (3, 1), True),
        (None, (3, 2), False),
        ((3, 4), (3, 5), True),
        ((3, 4), (3, 6), False),
        ((3, 4), (8, 5), False),
        ((3, 4), (8, 6), False),
        ((3, 4), (8, 2), False),
    ],
)
def test_what_may_follow_what(before: tuple[int, int] | None, after: tuple[int, int], follow: bool) -> None:
    mark = None if before is None else Mark(before[0], "n", before[1])
    assert follows(mark, Mark(after[0], "n", after[1])) is follow


def test_a_mark_survives_a_manifest() -> None:
    mark = Mark(1_700_000_000_000, "abc", 12)
    assert Mark.from_json(mark.to_json()) == mark


def test_stream_ids_sort_as_numbers() -> None:
    assert sorted(["10-0", "9-11", "9-2"], key=entry_order) == ["9-2", "9-11", "10-0"]


def test_whatever_is_read_in_whatever_order_each_batch_comes_out_once_and_in_order() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        entries = [Entry(f"{1000 + s}-{shard}", shard, 1 + s // 4, s + 1) for shard in range(3) for s in range(10)]
        ordering: Ordering[Entry] = Ordering()
        out: list[Entry] = []
        feed = [entries[i] for i in rng.permutation(len(entries))]
        while feed:
            count = int(rng.integers(1, 6))
            seen = [out[int(rng.integers(len(out)))]] if out else []
            ordering.offer([*feed[:count], *seen])
            feed = feed[count:]
            for entry in ordering.ready():
                out.append(entry)
                ordering.settle(entry)
        while rest := read_on(ordering):  # once for each change of owner
            out += rest
            for entry in rest:
                ordering.settle(entry)
        for shard in range(3):
            assert [entry.seq for entry in out if entry.shard == shard] == list(range(1, 11))
        assert ordering.marks() == {shard: Mark(3, "n", 10) for shard in range(3)}


def test_what_an_earlier_owner_gives_after_the_broker_forgot_a_claim_is_new() -> None:
    # Given owner 1, reaped and followed by owner 2, whose claim and batch the broker forgot after they were read
    ordering: Ordering[Entry] = Ordering()
    before = line((1, 1), (2, 2))
    ordering.offer(before)
    for entry in read_on(ordering):
        ordering.settle(entry)
    # When owner 1 wakes and goes on
    again = Entry("2000-0", 0, 1, 2)
    assert ordering.offer([again]) == []
    assert read_on(ordering) == [again]
    ordering.settle(again)
    # Then all three are dealt with, also for who resumes from the marks
    marks = {shard: Mark.from_json(mark.to_json()) for shard, mark in ordering.marks().items()}
    heir: Ordering[Entry] = Ordering(marks)
    assert heir.offer([*before, again]) == [*before, again]


def test_marks_of_an_older_manifest_still_cover_lower_epochs() -> None:
    mark = Mark.from_json([5, "n", 7])
    assert mark.covers(Entry("9-0", 0, 4, 9))
    assert not mark.covers(Entry("1-0", 0, 6, 1))


def test_what_the_broker_forgot_while_it_was_read_is_new_when_it_comes_again() -> None:
    ordering: Ordering[Entry] = Ordering()
    first, second, third, fourth = line((1, 1), (1, 2), (1, 3), (1, 4))
    ordering.offer([first, second, third, fourth])
    assert ordering.ready() == [first, second, third, fourth]
    ordering.settle(first)
    ordering.settle(fourth)
    ordering.rewind(third)
    assert [ordering.is_open(entry) for entry in (second, third, fourth)] == [True, False, False]
    ordering.settle(second)
    assert ordering.marks() == {0: Mark(1, "n", 2)}
    again = [Entry("2000-0", 0, 1, 3), Entry("2001-0", 0, 1, 4)]
    assert ordering.offer(again) == []
    assert ordering.ready() == again
    ordering.settle(again[0])
    assert ordering.marks() == {0: Mark(1, "n", 3)}


def test_a_repeat_of_what_is_taken_back_is_new() -> None:
    ordering: Ordering[Entry] = Ordering()
    first, second, third = line((1, 1), (1, 2), (1, 3))
    ordering.offer([first, second, third])
    assert ordering.ready() == [first, second, third]
    known, again = again_at(first, "2000-0"), again_at(third, "2001-0")
    assert ordering.offer([known, again]) == [known, again]
    assert ordering.rewind(second) == [again]
    assert ordering.offer([known, again, again_at(second, "2000-5")]) == []
    assert places(ordering.ready()) == [(1, 2), (1, 3)]


def test_what_waits_for_others_and_was_forgotten_with_their_reading_makes_no_hole() -> None:
    # Somebody else read (1, 2); (1, 3) came; then the broker went back to before it handed out either.
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 1)})
    second, third = line((1, 2), (1, 3))
    ordering.offer([third])
    assert ordering.ready() == [] and len(ordering.holes()) == 1
    assert ordering.withdraw([]) == []
    assert ordering.holes() == [] and ordering.ready() == []
    again = again_at(third, "2000-0")
    assert ordering.offer([second, again]) == []
    assert ordering.ready() == [second, again]


def test_what_waits_for_others_and_is_there_still_waits_on() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 1)})
    second, third = line((1, 2), (1, 3))
    ordering.offer([third])
    assert ordering.withdraw([second, third]) == []
    assert ordering.offer([second, third]) == []
    assert ordering.ready() == [second, third]


def test_a_repeat_of_what_waited_and_was_forgotten_is_new() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 1)})
    (third,) = line((1, 3))
    again = again_at(third, "2000-0")
    assert ordering.offer([third, again]) == [again]
    assert ordering.withdraw([again]) == [again]
    assert ordering.offer([again]) == []
    assert read_on(ordering) == [again]


def test_a_hole_that_was_lost_is_looked_for_anew_after_going_back() -> None:
    ordering: Ordering[Entry] = Ordering({0: Mark(1, "n", 1)})
    (third,) = line((1, 3))
    ordering.offer([third])
    assert read_on(ordering) == [third]
    ordering.rewind(third)
    assert ordering.offer([again_at(third, "2000-0")]) == []
    assert ordering.ready() == [] and len(ordering.holes()) == 1


def test_going_back_to_the_first_batch_goes_back_to_what_was_resumed() -> None:
    for mark in (None, Mark(1, "n", 4, "900-0")):
        ordering: Ordering[Entry] = Ordering({} if mark is None else {0: mark})
        seq = 1 if mark is None else 5
        (entry,) = line((1, seq))
        ordering.offer([entry])
        assert ordering.ready() == [entry]
        ordering.rewind(entry)
        ordering.rewind(entry)
        assert ordering.marks() == ({} if mark is None else {0: mark})
        again = Entry("2000-0", 0, 1, seq)
        assert ordering.offer([again]) == []
        assert ordering.ready() == [again]


@pytest.mark.parametrize("known", [0, OWNERS_KEPT], ids=["few owners ever", "more owners than a mark keeps"])
def test_a_later_owner_gives_new_data_also_under_an_id_below_the_mark(known: int) -> None:
    # The broker lost (90, 5), which was trained, and its clock stepped back: ids of owner 91 begin below that one's.
    earlier = tuple((1 + owner, "e", 1) for owner in range(known))
    ordering: Ordering[Entry] = Ordering({0: Mark(90, "n", 5, "9000-0", earlier=earlier)})
    again = [Entry("8000-0", 0, 91, 5, "m"), Entry("8001-0", 0, 91, 6, "m")]
    assert ordering.offer(again) == []
    assert read_on(ordering) == again


def test_what_was_given_under_a_claim_that_the_broker_forgot_is_known_when_a_backup_brings_it_back() -> None:
    ordering: Ordering[Entry] = Ordering()
    forgotten, later = Entry("1000-0", 0, 2, 1, "m"), Entry("2000-0", 0, 1, 1, "n")
    for entry in (forgotten, later):
        ordering.offer([entry])
        assert read_on(ordering) == [entry]
        ordering.settle(entry)
    (mark,) = ordering.marks().values()
    assert (mark.place, mark.above) == ((1, 1), 2)
    heir: Ordering[Entry] = Ordering({0: Mark.from_json(mark.to_json())})
    assert heir.offer([forgotten, later]) == [forgotten, later]
    assert heir.offer([Entry("500-0", 0, 3, 1, "o")]) == []


def test_an_owner_that_a_mark_with_all_owners_does_not_know_gives_new_data_whatever_its_epoch_and_id() -> None:
    # The broker lost a claim and batches of it, and its clock stepped back further than to that claim.
    ordering: Ordering[Entry] = Ordering({0: Mark(3761, "d", 2, "4387-0", earlier=((3000, "a", 1),))})
    again = [Entry("4364-0", 0, 3676, 1, "b"), Entry("4464-0", 0, 3676, 2, "b")]
    assert ordering.offer(again) == []
    assert read_on(ordering) == again


def test_going_back_keeps_the_epochs_that_were_seen() -> None:
    others = tuple((0, f"owner-{number}", 1) for number in range(OWNERS_KEPT))  # and more, of which it let go
    ordering: Ordering[Entry] = Ordering({0: Mark(3, "m", 1, "1000-0", earlier=others)})
    first, second = Entry("2000-0", 0, 1, 2), Entry("2001-0", 0, 1, 3)
    ordering.offer([first, second])
    assert read_on(ordering) == [first, second]
    ordering.rewind(second)
    repeat = Entry("900-0", 0, 2, 9, "l")  # of an owner between them, before the mark
    assert ordering.offer([repeat]) == [repeat]


def again_at(entry: Entry, entry_id: str) -> Entry:
    """The same batch, which the broker forgot and took once more."""
    return Entry(entry_id, entry.shard, entry.epoch, entry.seq, entry.nonce)


def test_what_an_owner_gives_again_after_the_broker_forgot_the_next_owner_comes_out_once() -> None:
    # Given (1, 2) and its next owner's first batch, both consumed, and a broker that goes back to before both
    ordering: Ordering[Entry] = Ordering()
    first, second, other = Entry("1000-0", 0, 1, 1), Entry("1001-0", 0, 1, 2), Entry("1002-0", 0, 5, 3, "m")
    for entry in (first, second, other):
        ordering.offer([entry])
        assert read_on(ordering) == [entry]
        ordering.settle(entry)
    # When owner 1, who never heard that (1, 2) was accepted, goes on
    again, more = again_at(second, "2000-0"), Entry("2001-0", 0, 1, 3)
    heir: Ordering[Entry] = Ordering({0: Mark.from_json(ordering.marks()[0].to_json())})
    for reader in (ordering, heir):
        # Then only what it never gave before is new
        assert reader.offer([again, more]) == [again]
        assert reader.covered(again)
        assert read_on(reader) == [more]
        reader.settle(more)
        # And what the forgotten owner gave is known, should a backup bring it back under whatever id.
        other_again = again_at(other, "3000-0")
        assert reader.offer([other_again]) == [other_again]


def test_what_an_owner_gives_later_is_new_under_an_id_below_the_next_owners() -> None:
    # The broker forgot owner 5, and its clock stepped back.
    ordering: Ordering[Entry] = Ordering()
    for entry in (Entry("1000-0", 0, 1, 1), Entry("2000-0", 0, 5, 2, "m")):
        ordering.offer([entry])
        assert read_on(ordering) == [entry]
    more = Entry("1500-0", 0, 1, 2)
    assert ordering.offer([more]) == []
    assert read_on(ordering) == [more]


def test_the_same_epoch_under_two_nonces_is_two_owners_each_with_what_it_gave() -> None:
    ordering: Ordering[Entry] = Ordering()
    one, two = Entry("1000-0", 0, 4, 1, "a"), Entry("1001-0", 0, 4, 2, "b")
    for entry in (one, two):
        ordering.offer([entry])
        assert read_on(ordering) == [entry]
    assert ordering.offer([again_at(one, "2000-0")]) == [again_at(one, "2000-0")]
    assert ordering.offer([Entry("2001-0", 0, 4, 2, "a")]) == []


def test_a_mark_knows_where_the_last_few_owners_stand_and_no_more() -> None:
    mark = Mark(1, "n1", 10, "1-0")
    for epoch in range(2, 2 * OWNERS_KEPT):
        mark = Mark(epoch, f"n{epoch}", 10 * epoch, f"{epoch}-0").after(mark)
    assert [epoch for epoch, _, _ in mark.earlier] == list(range(OWNERS_KEPT - 1, 2 * OWNERS_KEPT - 1))
    back = Mark.from_json(mark.to_json())
    assert (back, back.entry, back.above, back.earlier) == (mark, mark.entry, mark.above, mark.earlier)
    assert Mark.from_json([3, "n", 2, "7-0", 9]).above == 9, "as an older manifest has it"
    for damaged in ([3, "n", 2, "7-0", 9, [[1, "m"]]], [3, "n", 2, "7-0", 9, [1]]):
        with pytest.raises((ValueError, TypeError)):
            Mark.from_json(damaged)


class Shard:
    """A shard's part of a broker that is killed now and then: entries, and its owners, the one who has it last."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.stream: list[Entry] = []
        self._rng = rng
        self._owners = [(1, "n1", 0)]  # epoch, nonce, entries before its claim
        self._now = 0

    def give(self) -> None:
        self._now += 1
        epoch, nonce, _ = self._owners[-1]
        self.stream.append(Entry(f"{self._now}-0", 0, epoch, len(self.stream) + 1, nonce))

    def change_hands(self) -> None:
        if len(self._owners) < OWNERS_KEPT // 2:
            self._now += 1
            self._owners.append((self._now, f"n{self._now}", len(self.stream)))

    def lose_tail(self) -> None:
        """Up to three entries, and with them the claims that came after what is left."""
        del self.stream[max(0, len(self.stream) - int(self._rng.integers(1, 4))) :]
        while len(self._owners) > 1 and self._owners[-1][2] > len(self.stream) - int(self._rng.integers(2)):
            self._owners.pop()


@pytest.mark.parametrize("seed", range(60))
def test_however_often_the_broker_loses_claims_and_batches_each_batch_comes_out_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ordering: Ordering[Entry] = Ordering()
    shard, out = Shard(rng), []
    steps = [shard.give, shard.give, shard.give, shard.change_hands, shard.lose_tail]
    for _ in range(60):
        steps[rng.integers(len(steps))]()
        if rng.random() < 0.5:
            ordering.offer(shard.stream)
            for entry in read_on(ordering):
                out.append((entry.epoch, entry.nonce, entry.seq))
                ordering.settle(entry)
        if rng.random() < 0.1:
            marks = {index: Mark.from_json(mark.to_json()) for index, mark in ordering.marks().items()}
            ordering = Ordering(marks)
    ordering.offer(shard.stream)
    out += [(entry.epoch, entry.nonce, entry.seq) for entry in read_on(ordering)]
    assert len(set(out)) == len(out)
    assert {(entry.epoch, entry.nonce, entry.seq) for entry in shard.stream} <= set(out)
