"""Effects on their way out, and the messages that wait for the disk.

A message can depend on the term and vote being durable (a vote, a vote request, the answer to a
heartbeat), on everything before it (an acknowledgement of entries), or on nothing: a leader's
messages may overtake its own disk, for it counts itself only when its entries are durable, and its
term was before it led.
"""

from collections import deque
from enum import Enum

from penstock.logd.core.raft.events import Effect, Persist, Send
from penstock.logd.core.raft.messages import Message


class Needs(Enum):
    """What must be durable before a message leaves."""

    NOTHING = "nothing"
    HARD_STATE = "term and vote"
    EVERYTHING = "everything"


class Outbox:
    """The effects of one call of `handle`, and what is held back across calls.

    Attributes:
        number: Of the last `Persist`.
        hard_state_number: Of the last one with term and vote.
        persisted: The last one that is durable.
    """

    def __init__(self) -> None:
        self.number = 0
        self.hard_state_number = 0
        self.persisted = 0
        self._messages: list[tuple[Needs, Message]] = []
        self._held: deque[tuple[int, Message]] = deque()
        self._later: list[Effect] = []

    @property
    def hard_state_is_durable(self) -> bool:
        """Whether the term and vote that were written last are."""
        return self.hard_state_number <= self.persisted

    def send(self, message: Message, needs: Needs) -> None:
        """Send a message as soon as what it needs is durable."""
        self._messages.append((needs, message))

    def emit(self, effect: Effect) -> None:
        """Put out an effect behind all persisting and sending of this call."""
        self._later.append(effect)

    def mark_persisted(self, number: int) -> None:
        """Every `Persist` up to `number` is durable."""
        assert number <= self.number, f"step {number} was never given"
        self.persisted = max(self.persisted, number)

    def drop_held(self) -> None:
        """A new term begins: answers in the old one are of no use any more."""
        self._held.clear()

    def drop_messages(self) -> None:
        """Nothing that was to be sent leaves any more."""
        self._messages.clear()
        self._held.clear()

    def flush(self, persist: Persist | None) -> list[Effect]:
        """Everything of this call, in order.

        Args:
            persist: What this call wants durable; its number is the next one.
        """
        effects: list[Effect] = []
        if persist is not None:
            effects.append(persist)
            self.number = persist.number
            if persist.hard_state is not None:
                self.hard_state_number = persist.number
        while self._held and self._held[0][0] <= self.persisted:
            effects.append(Send(self._held.popleft()[1]))
        for needs, message in self._messages:
            gate = self._gate(needs)
            if gate <= self.persisted:
                effects.append(Send(message))
            else:
                self._hold(gate, message)
        effects.extend(self._later)
        self._messages, self._later = [], []
        return effects

    def _gate(self, needs: Needs) -> int:
        match needs:
            case Needs.NOTHING:
                return 0
            case Needs.HARD_STATE:
                return self.hard_state_number
            case Needs.EVERYTHING:
                return self.number

    def _hold(self, gate: int, message: Message) -> None:
        position = len(self._held)
        while position and self._held[position - 1][0] > gate:
            position -= 1
        self._held.insert(position, (gate, message))
