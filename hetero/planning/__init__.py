"""Plans: what a model costs on a mesh, which mesh and which split of the work a cluster does best. Pure functions."""
