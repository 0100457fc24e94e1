"""What the method stands on and is not about: the model and its samplers, several GPUs, the inside of the sandbox,
the run folder, flags and recipes. Open it to change how things run, not what is learnt."""
