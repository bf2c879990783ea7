"""Read a CDC log in the order of its generations: in windows by a consumer, and hour by hour into sinks."""
