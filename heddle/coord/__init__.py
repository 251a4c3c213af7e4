"""The coordinator: admits experiments, issues tickets, reaps expired leases, shares shards, ends what is over.

It never plays, trains or stores anything; several may run and one leads.
"""
