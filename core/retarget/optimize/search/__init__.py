"""Search: find a faster schedule by measuring candidates.

`moves` makes candidates of a schedule, `worker` is the process that compiles and times one, `cells` start
such processes, `evolve` is the search of one kernel, and `tune` is `rt.tune`.  What was found is kept by
`runtime.tuned`.
"""
