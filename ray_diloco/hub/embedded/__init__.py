"""The local hub: the part of the Hub's HTTP interface that the client uses, over a folder.

`server` runs it in a thread; `app` has the routes, `reading`, `writing` and `uploads` their
handlers, `answers` the shapes of what is said; `catalog`, `served`, `journal` and `store` keep
repositories on disk; `strict` makes it unkind on purpose.
"""
