"""Schedules: their text, their application to a kernel, and the heuristics that choose one."""
