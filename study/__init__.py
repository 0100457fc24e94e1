"""Looking at runs: the sweep over recipes with its committed numbers, the report, the papers' figures.
Open it to compare or to plot."""
