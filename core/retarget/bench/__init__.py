"""Measurements that ship with Retarget: `latency` of the compiler itself, and `kernels` against other
libraries.

`retarget bench` is the way to run them.  For kernels, in the order of use: `libraries` (what there is to
compare with), `kernels` (what is computed), `measure` (how).  Figures are medians; the spread beside each is
half the distance between the quartiles, in per cent of the median.
"""

from __future__ import annotations
