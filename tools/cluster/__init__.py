"""A whole cluster on this machine, and what it costs when each of its parts is killed, stopped, cut off or replaced.

`python -m tools.cluster`, or `make cluster`: three NATS servers, three workers, two engine servers, and Kamailio and
HAProxy in front of them, each on a machine of its own. A machine is a network namespace with an address at a common
switch, so that all of them use their usual ports, and a cable can be pulled. Sixty callers come and go, three
subscribers listen, files are transcribed; then one part after the other is struck.

`network` has the machines, `parts` what runs on them with its settings, and `scene` all of it. `callers`, `listeners`
and `jobs` are the world outside; `acts` says what is done to whom, and `report` what came of it.
"""
