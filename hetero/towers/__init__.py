"""Towers: plain `nn.Module`s from dense features and looked-up embeddings to one logit per row.

They know nothing of devices, collectives or servers.
"""
