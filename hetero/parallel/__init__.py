"""Collective groups of towers: the only caller of torch.distributed's process groups and meshes."""
