"""The roles of a run as Ray actors: thin shells that construct, forward and report.

The only package that imports ray.
"""
