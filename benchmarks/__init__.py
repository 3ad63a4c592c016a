"""Speed ratios against peer implementations: `python -m benchmarks [NAME...]`.

The load of a machine varies, so most benchmarks alternate between the two sides. Each reports the
ratio of the median times, next to both times. These are not tests: no time is ever asserted.
"""
