"""One comparison with all that people did with it, for the page of managers and reviewers.

judgments.py   a judgment in the letters that its annotator saw
responses.py   responses with spans, together or as one annotator saw them
agreement.py   agreement on this comparison, as a sentence
neighbours.py  the comparisons before and after it
page.py        everything on the page
"""
