"""What a notebook shows of a real server's experiments, and that nobody's name becomes markup there."""

from collections.abc import Iterator

import pytest

from heddle import markup
from heddle.broker import keys
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer
from heddle.client import Client, connect
from tests.tracking_kit import Training
from tests.unit.test_markup import EVIL, parsed


@pytest.fixture
def client(valkey_server: LocalServer) -> Iterator[Client]:
    with connect(valkey_server.url) as connected:
        yield connected


def test_an_experiment_its_status_workers_and_curve_are_shown_as_html(client: Client) -> None:
    # Given an experiment with three updates, a worker, and reasons that are markup
    training = Training(client.broker)
    training.updates(3)
    client.broker.conn.main.hset(keys.status(training.id), "reason", EVIL)
    client.broker.pools.heartbeat(WorkerBeat("w1", state="waiting", reason=EVIL), ttl_ms=60_000)
    experiment = client.experiment(training.id)
    # Then each says what it is, well-formed, in a notebook
    shown = {
        name: parsed(thing._repr_html_())  # type: ignore[attr-defined]
        for name, thing in {
            "client": client,
            "list": client.experiments(),
            "workers": client.workers(),
            "experiment": experiment,
            "status": experiment.status(),
            "state": experiment.state(),
            "picture": experiment.picture(),
            "curve": experiment.curve(),
        }.items()
    }
    said = {name: "".join(tree.itertext()) for name, tree in shown.items()}
    assert all(training.id in text for name, text in said.items() if name != "workers"), said
    assert EVIL in said["status"] and EVIL in said["list"] and "w1" in said["workers"]
    for name in ("experiment", "curve"):
        assert [element for element in shown[name].iter() if element.tag.endswith("polyline")], name
    assert experiment.curve().points == ((10.0, 1.0), (20.0, 2.0), (30.0, 3.0))
    # And what it is otherwise stays
    assert client.experiments()[0].experiment == training.id and client.workers()["w1"].subject == "worker w1"


def test_what_cannot_be_asked_is_shown_too_and_no_password(client: Client) -> None:
    training = Training(client.broker)
    experiment, group = client.experiment(training.id), client.group("none")
    client.broker.conn.main.delete(keys.spec(training.id), keys.status(training.id), keys.ctl(training.id))
    assert "cannot be asked" in "".join(parsed(experiment._repr_html_()).itertext())
    assert "cannot be asked" in "".join(parsed(group._repr_html_()).itertext())
    assert markup.text(client.broker.conn.url_redacted) in client._repr_html_()
