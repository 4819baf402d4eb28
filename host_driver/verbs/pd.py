"""A protection domain: what its queue pairs may touch is what is registered in it."""

from .resource import Resource

__all__ = ["PD"]


class PD(Resource):
    def __init__(self, context):
        super().__init__(context)
        self.context = context
        self.handle = context.numbers.pd()
        self._born()

    def __repr__(self):
        return f"PD({self.handle})"

    def _close(self):
        self.context.numbers.free_pd(self.handle)
