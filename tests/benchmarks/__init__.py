"""Benchmarks: wkwdask beside the tools that people use today, on the same files in the same run.
``README.md`` says how to run them."""
