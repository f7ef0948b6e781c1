"""A page to play with a model in the browser (extra ``serve``)."""
