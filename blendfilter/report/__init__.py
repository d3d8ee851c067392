"""A run as text, as a page of HTML, as plots, and in a notebook."""
