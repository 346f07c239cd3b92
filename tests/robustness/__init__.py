"""What happens to manyheads when files are damaged or hostile, disks full, processes killed, folders shared.

targets.py    every reader of outside bytes, one table: for the property tests here and for the fuzzer
fuzz.py       `python -m tests.robustness.fuzz TARGET --seconds N`: the same readers, for as long as you like
faults.py     what writes a file, one table: for tests of full disks, kills and several writers

SECURITY.md says what all of it is for; `python -m benchmarks.soak` is the studio's.
"""
