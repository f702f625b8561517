"""Time as a participant meets it: the wall clock, profiles of nodes and links."""
