"""The model of `--model tiny`, made in two minutes, and the small worlds that it is taught.
Open it to change what a laptop shows."""
