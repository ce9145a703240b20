"""A scorer with a bug, as a user's own file would hold it."""


class Broken:
    unit = "share"

    def score(self, request, candidates, context):
        raise RuntimeError("no such table")
