"""Campaign of faults: every job of the matrix is killed, or gets an error, at its system calls.

``python tests/campaign/run.py --help`` lists the parts and options.
"""
