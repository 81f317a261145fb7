"""The dependency graph of a job: from traces to what-if, slack and the critical path (docs/engine.md)."""
