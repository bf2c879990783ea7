"""The life of a generation, a room a topic: what is written, in which order, and what each step relies on."""
