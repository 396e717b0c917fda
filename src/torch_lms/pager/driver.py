"""Has the pager's actions performed."""

from collections.abc import Callable, Generator, Iterable
from typing import cast

from torch_lms.pager.actions import Action


def drive(actions: Iterable[Action], perform: Callable[[Action], Exception | None]) -> None:
    """Perform ``actions`` one by one, each with the outcome of the one before known to the pager.

    Args:
        actions: what ``Pager.handle`` returned.
        perform: does an action; returns why it could not be done where the pager knows how to go on.
    """
    if isinstance(actions, tuple):
        for action in actions:
            error = perform(action)
            if error is not None:
                raise error
        return
    asked = cast(Generator[Action, Exception | None, None], actions)
    try:
        action = next(asked)
        while True:
            try:
                outcome = perform(action)
            except BaseException as error:
                action = asked.throw(error)
            else:
                action = asked.send(outcome)
    except StopIteration:
        pass
    finally:
        outcome = None  # an error, which holds this frame (N21)
