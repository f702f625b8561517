"""What a run or a sweep has left, as one page to look at: ``report.html``.

run_records        what a run folder holds, as far as it has come
curves, spans      the losses, and who did what when, from the events
axes, style        what the figures share
run_figures        the figures of a run, as plain plotly JSON
facts              its numbers and warnings in words
document           HTML without a framework; ``assets`` has its style and script
run_page           a run's page, or several runs beside each other
sweep_records, sweep_figures, sweep_page   the same of a sweep
gallery            the figures one by one, for notebooks
watching           draws again while runs go on
picture            the page as a PNG
write              reads, draws and writes
"""
