"""`acl`: the rights that a role needs, as rules for Redis.

It never talks to a broker.
"""

import click

from heddle.cli.options import command, output_option, print_json

NAMES = ("worker", "trainer", "coordinator", "tracker", "user", "reader")


@command("acl", example="redis-cli ACL SETUSER w1 on '>PASSWORD' $(heddle acl worker)\nheddle acl reader -o json")
@click.argument("role", type=click.Choice(NAMES))
@output_option
def acl(role: str, output: str) -> None:
    """Print the least rights of a Redis user for ROLE, as ACL SETUSER takes them."""
    from heddle.broker.acl import ROLES

    rules = ROLES[role].rules()
    if output == "json":
        print_json({"role": role, "about": ROLES[role].about, "rules": rules}, ids=[role])
        return
    click.echo(" ".join(rules))
