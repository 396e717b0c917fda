"""Every error that torch-lms raises, in one tree.

    LmsError
    +-- UsageError            (also ValueError): an argument or a call that cannot be obeyed
    |   +-- SessionError      (also RuntimeError): enabled twice, stepped while off, enabled inside another mode
    +-- WorkingSetError       (also RuntimeError): the device cannot hold one operation's own working set
    +-- DeviceFullError       (also RuntimeError): not everything fits on the device at once
    +-- StoreError            (also OSError): a lower tier failed
    |   +-- StoreFullError    no room left there; the page stays where it was
    |   +-- PageLostError     a page could not be read back, or came back damaged
    +-- ForkedPageError       (also RuntimeError): a forked child touched a page that its parent had evicted
    +-- UnsupportedError      (also RuntimeError): PyTorch can do it, paging cannot
    +-- InvalidTransition     (also RuntimeError): a page was asked for what its state does not allow; a bug of ours
    +-- InvariantError        (also AssertionError): the books do not add up; a bug of ours

The second bases let code that knows only PyTorch's errors (batch-size finders, trainers) go on catching what it caught.
"""


class LmsError(Exception):
    """Base of everything torch-lms raises."""


class UsageError(LmsError, ValueError):
    """An argument that cannot be obeyed: says what was expected, what came, and what to do."""


class SessionError(UsageError, RuntimeError):
    """A call that does not fit the state of the session: enabling twice, using it while it is off."""


class WorkingSetError(LmsError, RuntimeError):
    """The device cannot hold what one operation alone reads and writes."""


class DeviceFullError(LmsError, RuntimeError):
    """The session cannot end: not everything that it holds fits on the device at once. It goes on."""


class StoreError(LmsError, OSError):
    """A lower tier (host memory or disk) failed."""


class StoreFullError(StoreError):
    """A lower tier has no room. The page that was to go there is still on the device."""


class PageLostError(StoreError):
    """A page cannot be read back, or its bytes are not those that were written."""


class ForkedPageError(LmsError, RuntimeError):
    """A forked child touched a page whose bytes only its parent can bring back."""


class UnsupportedError(LmsError, RuntimeError):
    """Something that PyTorch can do and paging cannot, refused before harm is done."""


class InvalidTransition(LmsError, RuntimeError):
    """A page was asked for something that its state does not allow."""


class InvariantError(LmsError, AssertionError):
    """A check of the books failed."""
