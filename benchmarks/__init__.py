"""Side-by-side speed ratios against peers: `python -m benchmarks [NAME...]`.

Machines are noisy, so both sides run in turns in one process and only their ratio is reported,
with both times beside it. Nothing here is a test: a time is never asserted.
"""
