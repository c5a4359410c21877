"""`mediaworker bench scale`: thousands of calls on a virtual clock, over the real placement and the real scheduler.

What is real: `asr.client.outstanding.OutstandingWork` with its `Placement` and `SendQueue`s in each worker, and
`asr.scheduling.scheduler.Scheduler` in each engine server; what is asked for, and when (`benchmarks.engine.talk`). What
is a model: the time of a step (`costs`), the network, the servers' loops, the dispatcher before the workers.
"""
