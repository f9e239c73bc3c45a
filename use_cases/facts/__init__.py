"""Processors, which fold facts of the log into something else."""
