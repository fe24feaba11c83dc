"""A scorecard for people and for build servers: HTML, Markdown, JUnit, and plain sentences.

`render.render` writes the files of a run, `explain.explain` says in a few lines why a verdict is what it is. Nothing
here judges or measures: every figure is the scorecard's own, and the plots draw the run's step events. `figures`,
`faults`, `steady` and `history` turn scorecard and journal into rows of text that all formats share; `words` writes
quantities; `curve`, `scale`, `svg`, `plot` and `stages` draw; `html`, `markdown` and `junit` are the formats.

Scorecards of other versions, of runs that were cut and of runs that never began are read as well: a key that is absent
is left out of the page, never an exception.
"""
