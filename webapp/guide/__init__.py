"""The guide: Markdown pages in four folders, served at /guide/ and readable in the repository.

`library` reads the pages, `rendering` turns them into HTML, `search` finds sections, `help_links` says which
page explains which page of the app, and `generated` writes the references that follow from the code.
"""
