"""Load tests that tell the truth: a lean client that stamps at arrival and parses afterwards."""
