"""Which threads work beside the training: what they do is no part of its steps."""

from threading import get_ident


class Asides:
    """Threads that go on from one step to the next, while another ends them: one that augments batches, say.

    Threads that begin and end within a step, as those of replicas, take part in it. So do autograd's own.

    Attributes:
        threads: the identities of those that were it when the last step ended.
    """

    def __init__(self) -> None:
        self.threads: list[int] = []
        self._steps = 0
        self._main: int | None = None  # the thread that ended the last step
        self._began: dict[int, int] = {}  # in which step each thread did

    def thread_begins(self) -> None:
        """The calling thread takes part in the session from now on."""
        self._began[get_ident()] = self._steps

    def thread_ends(self) -> None:
        """It does no more."""
        self._began.pop(get_ident(), None)

    def step_ends(self) -> None:
        """The calling thread has ended a step."""
        self._steps += 1
        self._main = get_ident()
        self.threads = [thread for thread in list(self._began) if thread != self._main]

    def is_one(self) -> bool:
        """Whether the calling thread works beside the steps."""
        thread = get_ident()
        return self._began.get(thread, self._steps) < self._steps and thread != self._main
