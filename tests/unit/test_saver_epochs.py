"""A trainer's checkpoints beside those of one that came after it."""

from pathlib import Path

import pytest

from heddle.checkpoint import file_name
from heddle.consumers.saver import DIRECTORY, Saver
from heddle.errors import SeatLost
from heddle.spec import load_spec

SPEC = load_spec({"experiment": {"name": "test"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1}}).spec


def test_a_trainer_stops_once_one_with_a_higher_seat_epoch_has_written(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    saver = Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=7)
    (tmp_path / DIRECTORY / file_name(7, 3)).touch()
    saver.check_newest()
    (tmp_path / DIRECTORY / file_name(8, 1)).touch()
    with pytest.raises(SeatLost, match="seat epoch 8"):
        saver.check_newest()
