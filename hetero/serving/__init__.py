"""Scores rows with an exported model: needs neither Ray nor the training code, and looks rows up by memory map.

    from hetero.serving.model import ServedModel

    model = ServedModel.open("exports/movielens")
    scores = model.score(pa.table({"user": ["17"], "item": ["Toy Story"], ...}))
    scores.predictions                          float32 [1]

Imports kernels, data and keys of this package, with numpy, torch, pyarrow and numba, and nothing else of it.
"""
