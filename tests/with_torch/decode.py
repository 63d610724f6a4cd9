"""A small decoder with random weights: attention over a KV cache that grows by a token a step."""

import math
from dataclasses import dataclass

import torch

HIDDEN, HEADS, HEAD_DIM, LAYERS, VOCABULARY = 256, 16, 512, 3, 1000
TOKEN_BYTES = HEADS * HEAD_DIM * 4  # of one layer's keys, or of its values


@dataclass
class Decoder:
    """Weights, and the token and place that a step reads and moves on."""

    embedding: torch.Tensor
    inward: list[torch.Tensor]
    outward: list[torch.Tensor]
    head: torch.Tensor
    token: torch.Tensor
    place: torch.Tensor

    def start(self):
        self.token.fill_(7)
        self.place.zero_()


def make_decoder():
    torch.manual_seed(5)
    width = HEADS * HEAD_DIM

    def random(*shape):
        return torch.randn(shape, device="cuda") / math.sqrt(shape[0])

    return Decoder(
        torch.randn((VOCABULARY, HIDDEN), device="cuda"),
        [random(HIDDEN, 3 * width) for _ in range(LAYERS)],
        [random(width, HIDDEN) for _ in range(LAYERS)],
        random(HIDDEN, VOCABULARY),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
    )


def step(decoder, caches, bound):
    """Decode one token; of the caches, only the first `bound` tokens are touched.

    What lies after the place may be anything, not-a-number too.
    """
    hidden = decoder.embedding.index_select(0, decoder.token)
    seen = torch.arange(bound, device="cuda") <= decoder.place
    for layer in range(LAYERS):
        keys, values = caches[2 * layer], caches[2 * layer + 1]
        query, key, value = (hidden @ decoder.inward[layer]).view(3, 1, HEADS, HEAD_DIM)
        keys.index_copy_(0, decoder.place, key)
        values.index_copy_(0, decoder.place, value)
        kept = torch.where(seen[:, None, None], values[:bound], 0.0)
        scores = torch.einsum("hd,thd->ht", query[0], keys[:bound]) / math.sqrt(HEAD_DIM)
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), 1)
        mixed = torch.einsum("ht,thd->hd", weights, kept)
        hidden = hidden + mixed.reshape(1, -1) @ decoder.outward[layer]
        hidden = torch.nn.functional.layer_norm(hidden, (HIDDEN,))
    decoder.token.copy_((hidden @ decoder.head).argmax(1))
    decoder.place.add_(1)
