"""Gossip in rounds as ScyllaDB does it: each second a node exchanges its knowledge with a random peer.

Every endpoint gossips one generation ID, the newest it could read, which replaces its earlier one; and a node that has
joined gossips its tokens. A node that hears of an endpoint only after the endpoint's ID was replaced never hears the
earlier ID from there.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds
from cdc_platform.simulation.chance import Chance, PlannedChance
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.network import SimulatedNetwork
from cdc_platform.simulation.node_set import NodeMask
from cdc_platform.simulation.scheduler import Scheduler

ROUND_US = SECOND_US
GossipedId = tuple[Milliseconds, int]
"""A generation's timestamp (ms) and its number: the greater one is newer."""
Knowledge = tuple[NodeMask, dict[GossipedId, NodeMask]]
"""The nodes whose tokens are known, and by generation the endpoints that have announced it."""


class Gossiper:
    """The gossip of one process of a node: it knows nothing when the process starts.

    `on_generation(id)` and `on_tokens(mask)` are called with what is new. `heard`: a peer has answered.
    """

    def __init__(
        self,
        machine: Machine,
        on_generation: Callable[[GossipedId], object],
        on_tokens: Callable[[NodeMask], object],
    ) -> None:
        self.machine = machine
        self.heard = False
        self.tokens: NodeMask = machine.ring_mask
        self.endpoints: dict[GossipedId, NodeMask] = {}
        self._heard: set[GossipedId] = set()
        self._on_generation = on_generation
        self._on_tokens = on_tokens

    def announce(self, generation: GossipedId, tokens: NodeMask = 0) -> None:
        """Gossip this node's generation and tokens from now on."""
        self._merge_tokens(tokens)
        self._heard.add(generation)
        self._merge_endpoints({generation: 1 << self.machine.number})

    def snapshot(self) -> Knowledge:
        """Return what a message to a peer contains."""
        return self.tokens, self.endpoints

    def knows_like(self, other: Gossiper) -> bool:
        """Return True if both know equally much."""
        return self.tokens == other.tokens and self.endpoints == other.endpoints

    def merge(self, knowledge: Knowledge) -> None:
        """Learn what a peer knows."""
        tokens, endpoints = knowledge
        self._merge_tokens(tokens)
        self._merge_endpoints(endpoints)
        for generation in sorted(self.endpoints):
            if generation not in self._heard:
                self._heard.add(generation)
                self._on_generation(generation)

    def _merge_endpoints(self, endpoints: dict[GossipedId, NodeMask]) -> None:
        """Keep the newest generation of each endpoint, which replaces its earlier ones."""
        merged: dict[GossipedId, NodeMask] = {}
        later: NodeMask = 0
        for generation in sorted({*endpoints, *self.endpoints}, reverse=True):
            current = (endpoints.get(generation, 0) | self.endpoints.get(generation, 0)) & ~later
            later |= current
            if current:
                merged[generation] = current
        self.endpoints = merged

    def _merge_tokens(self, tokens: NodeMask) -> None:
        if tokens & ~self.tokens:
            self.tokens |= tokens
            self._on_tokens(tokens)


class GossipRounds:
    """The rounds of all nodes: digest, answer, and the answer's answer, each a message that may be lost."""

    def __init__(self, scheduler: Scheduler, network: SimulatedNetwork, chance: Chance) -> None:
        self._scheduler = scheduler
        self._network = network
        self._chance = chance
        self._planned = isinstance(chance, PlannedChance)
        self._gossipers: dict[int, Gossiper] = {}
        self._numbers: list[int] = []

    def start(self, gossiper: Gossiper) -> None:
        """Begin the rounds of a process."""
        number = gossiper.machine.number
        if number not in self._gossipers:
            self._numbers.append(number)
        self._gossipers[number] = gossiper
        first_us = Microseconds(int(self._chance.random() * ROUND_US))
        self._scheduler.after(first_us, self._round, gossiper, gossiper.machine.incarnation)

    def get(self, number: int) -> Gossiper:
        """Return the gossip of a node's current process."""
        return self._gossipers[number]

    def _round(self, gossiper: Gossiper, incarnation: int) -> None:
        machine = gossiper.machine
        if machine.incarnation != incarnation or not machine.up:
            return
        scheduler = self._scheduler
        scheduler.at(Microseconds(scheduler.now_us + ROUND_US), self._round, gossiper, incarnation)
        numbers = self._numbers_by_news(gossiper) if self._planned else self._numbers
        if not numbers:
            return
        peer = self._gossipers[numbers[int(self._chance.random() * len(numbers))]]
        # Most rounds end here, so this is `_has_news` without a call.
        if peer is gossiper or (
            gossiper.heard and gossiper.tokens == peer.tokens and gossiper.endpoints == peer.endpoints
        ):
            return
        self._network.send(machine, peer.machine, self._answer, gossiper, peer)

    def _numbers_by_news(self, gossiper: Gossiper) -> list[int]:
        """Return all nodes, those with news for this one first; none if there is no news, which uses no chance."""
        with_news = [number for number in self._numbers if self._has_news(gossiper, self._gossipers[number])]
        return with_news and [*with_news, *(number for number in self._numbers if number not in with_news)]

    def _has_news(self, gossiper: Gossiper, peer: Gossiper) -> bool:
        """Return False between nodes that know equally much, where the three messages change nothing."""
        return peer is not gossiper and not (gossiper.heard and gossiper.knows_like(peer))

    def _answer(self, asking: Gossiper, peer: Gossiper) -> None:
        peer = self._gossipers[peer.machine.number]
        self._network.send(peer.machine, asking.machine, self._answered, asking, peer, peer.snapshot())

    def _answered(self, asking: Gossiper, peer: Gossiper, knowledge: Knowledge) -> None:
        if self._gossipers[asking.machine.number] is not asking:
            return
        asking.heard = True
        asking.merge(knowledge)
        self._network.send(asking.machine, peer.machine, self._informed, peer, asking.snapshot())

    def _informed(self, peer: Gossiper, knowledge: Knowledge) -> None:
        if self._gossipers[peer.machine.number] is peer:
            peer.merge(knowledge)
