"""What else can be played besides games: worlds of tools, questions from documents (SPICE), RLVE's problems.
Open it to change one of them or to add a kind of environment."""
