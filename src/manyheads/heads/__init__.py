"""Heads and how they are written: one spelling of each head, one grammar for sets of them.

    L3H7            layer 3, head 7, both from 0
    L3              all heads of layer 3
    L3H0-5          heads 0 to 5 of layer 3, both ends included; L0-2H7 and L0-2 work alike
    L*H7            head 7 of every layer that has one
    encoder:L0H1    where a model has several stacks, the stack comes first; one of them may have no name, as in a
                    decoder with cross-attention: "L0H1" and "cross:L0H1"
    L3H7, L5        any of these, separated by commas

In Python also lists (tuples, sets, ...) of those and of `Head`s, and, where a model has one stack, `{layer: [heads]}`,
the form people know from head pruning. What is asked resolves against what exists: `parse_heads(what, shape)`, where
`shape` says how many heads each layer of each stack has. Sets come out in the model's order whatever the order asked,
so equal sets are equal values, print alike and hash alike.

Everywhere a set of heads is asked for (plans, pruning, commands, the page), it is this grammar and no other: `grammar`
reads it, `sets` finds in a model what it names.
"""

from manyheads.heads.grammar import Head, HeadsLike
from manyheads.heads.sets import HeadSet, Shape, in_layer, parse_heads, written

__all__ = ["Head", "HeadSet", "HeadsLike", "Shape", "in_layer", "parse_heads", "written"]
