"""The local server of the studio: routes, safety, and answers without a socket."""
