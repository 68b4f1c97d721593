"""A pretend inference engine: a process of its own that speaks like vLLM or llama.cpp.

Its model is deterministic and knows its own answers, so a test can say what an unbroken answer
would have been, and the engine itself notices a continuation that starts from wrong text.
Run it with `python -m tests.engine_simulator`; tests start it with `process.SimulatorProcess`.
"""
