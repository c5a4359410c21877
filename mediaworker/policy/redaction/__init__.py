"""What must not leave the worker, nor reach its disk: card numbers, what patterns say, and digits that are keyed in."""
