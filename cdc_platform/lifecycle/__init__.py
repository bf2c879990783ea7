"""The life of a generation, a module a step: what is written, in which order, and what each step relies on."""
