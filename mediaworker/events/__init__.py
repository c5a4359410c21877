"""Events: their schema, the store that outlives the process, and the hub that fans them out."""
