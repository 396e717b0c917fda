"""Which threads work beside the training: what they do is no part of its steps."""

from threading import get_ident


class Asides:
    """Threads that go on from one step to the next, while another ends them: one that augments batches, say.

    Threads that begin and end within a step, as those of replicas, take part in it. So do autograd's own.

    Attributes:
        threads: their identities.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._all: set[int] = set()  # that take part in the session

    def thread_begins(self) -> None:
        """The calling thread takes part in the session from now on."""
        self.threads.discard(get_ident())  # it may have that of one that has ended
        self._all.add(get_ident())

    def thread_ends(self) -> None:
        """It does no more."""
        self.threads.discard(get_ident())
        self._all.discard(get_ident())

    def step_ends(self) -> None:
        """The calling thread has ended a step."""
        self.threads = self._all - {get_ident()}

    def is_one(self) -> bool:
        """Whether the calling thread works beside the steps."""
        return get_ident() in self.threads
