"""Looks: facts read and judged in one go, for whoever shows them.

It never shows and never changes anything.
"""

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.pools import WorkerInfo
from heddle.broker.records import Status
from heddle.errors import BrokerAmiss, Gone, NotFound
from heddle.states.experiments import Picture, judge, judge_ended
from heddle.states.facts import Facts, PoolFacts, Sight
from heddle.states.judgement import Judgement, unknown
from heddle.states.read import facts_of, pool_facts, sight
from heddle.states.workers import judge_worker


def look_at(broker: Broker, experiment: str) -> tuple[Facts, Picture]:
    """One experiment with everything around it, now. Raises Gone."""
    facts = facts_of(broker, experiment, seen=sight(broker))
    return facts, judge(facts)


def look_at_all(broker: Broker) -> tuple[Sight, list[tuple[Status, Judgement]]]:
    """Every experiment, newest first; of those that are over nothing more is read."""
    seen = sight(broker)
    pools: dict[str, PoolFacts] = {}
    found = []
    for status in broker.experiments.ls():
        if status.ended:
            found.append((status, judge_ended(status)))
            continue
        try:
            if status.pool not in pools:
                pools[status.pool] = pool_facts(broker, status.pool)
            facts = facts_of(broker, status.experiment, seen=seen, pool=pools[status.pool], status=status)
            found.append((status, judge(facts).experiment))
        except (Gone, NotFound):
            found.append((status, unknown(f"experiment {status.experiment}", "it is being removed")))
        except (BrokerAmiss, Damaged) as error:  # its pool's, or everybody's
            found.append((status, unknown(f"experiment {status.experiment}", str(error))))
    return seen, found


def look_at_pool(broker: Broker, pool: str) -> tuple[Sight, list[tuple[WorkerInfo, Judgement]]]:
    """The workers of a pool by id, the dead ones last."""
    seen, supervisors = sight(broker), broker.pools.supervisors(pool)
    found = [(info, judge_worker(info, seen, supervisors)) for info in broker.pools.workers(pool)]
    return seen, sorted(found, key=lambda one: one[1].state == "dead")
