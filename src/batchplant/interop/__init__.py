"""The only modules that import a framework: one for each."""
