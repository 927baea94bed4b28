"""Row-wise optimizers: one definition each, with a CPU kernel and a torch path of equal results."""
