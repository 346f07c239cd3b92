"""The pass as Triton kernels: sums along a map's rows or down its columns, its diagonals, its blocks; never the map.

- `line_sums`: a program takes a block of lines and walks over the tiles that they see. Lines are rows and the others
  keys, or lines are keys and the others rows (`BY_KEY`): what a key receives is then a sum within one program, too,
  always in the same order, and no program adds to what another one wrote.
- `band`: the weights at some offsets `key - row`, each a dot product of its own.
- `pool`: the sum and the largest weight of each block of a `size` x `size` grid.

A tile is *plain* where every line sees every cell and no cell is near the diagonal: its loop looks neither at the mask
nor at places. `launches` plans which tiles are. Scores and logarithms are to base 2, as in `one_pass`.

What the machine code taught (`tests/recording/kernels`): sums over columns that lie `PARTS` apart stay within a thread,
so that no lane waits for another until the loop is over (8 of them in the tensor core's tiles of Ampere and Hopper, 1
on Blackwell, where a thread holds whole rows); labels are float32, for which "1 where equal" is one instruction.

A module of kernels must be imported only where they run: Triton is not part of the CPU's torch.
Source: Dao 2023, FlashAttention-2, Algorithm 1 (the tiles); the reductions are those of `requests`, name by name.
"""
# pyright: reportGeneralTypeIssues=false, reportMissingParameterType=false, reportUnknownParameterType=false
# (For pyright a kernel never returns: only kernels call it.)

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
HIDDEN = tl.constexpr(-1.0e4)  # log2 of a hidden cell's weight: exp2 gives exactly 0, and unlike -inf it survives 0 * x
NO_ROW = tl.constexpr(1.0e4)  # the lse of a row that sees nothing: lower than HIDDEN is whatever it is taken from
FAR = tl.constexpr(2**31 - 1)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")


@triton.jit
def product(a, b, onto, PRECISION: tl.constexpr):
    """`onto + a @ b`, summed in float32."""
    # The interpreter multiplies the bit patterns of bfloat16. Products of two bf16 are exact in float32, as on a GPU.
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), onto)
    else:
        return tl.dot(a, b, onto, input_precision=PRECISION)


@triton.jit
def finished(scores, scale, SOFTCAP: tl.constexpr):
    """Scores to base 2 from products: scaled, and capped where there is a cap."""
    if SOFTCAP > 0:
        grown = tl.exp2(scores * (scale * (2.0 * LOG2_E / SOFTCAP)))  # tanh x = 1 - 2 / (1 + exp 2x)
        return SOFTCAP * LOG2_E - (2.0 * SOFTCAP * LOG2_E) / (1.0 + grown)
    else:
        return scores * (scale * LOG2_E)


@triton.jit
def tile_scores(lines, others, scale, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """`[m d] x [n d] -> [m n]` scores to base 2."""
    zeros = tl.zeros([lines.shape[0], others.shape[0]], tl.float32)
    return finished(product(lines, tl.trans(others), zeros, PRECISION), scale, SOFTCAP)


@triton.jit
def vectors(ptr, place, stride, readable, D: tl.constexpr):
    """`[n d]` of q or k at some places, 0 where not readable."""
    ptrs = ptr + place.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None]
    return tl.load(ptrs, mask=readable[:, None], other=0.0)


@triton.jit
def rows_facts(runs_ptr, lse_ptr, row, num_rows):
    """Start and stop of the keys that rows see, and the lse to base 2; rows that are none see nothing."""
    start = tl.load(runs_ptr + row, mask=row < num_rows, other=0)
    stop = tl.load(runs_ptr + num_rows + row, mask=row < num_rows, other=0)
    return start, stop, tl.load(lse_ptr + row, mask=start < stop, other=NO_ROW) * LOG2_E


@triton.jit
def part(x, PARTS: tl.constexpr):
    """`[m n] -> [m, n / PARTS, PARTS]`, to be summed over the middle within a thread."""
    return tl.reshape(x, [x.shape[0], x.shape[1] // PARTS, PARTS])


@triton.jit
def add_tile(
    sums, first, lines, line, facts, line_labels, others_ptr, lse_ptr, runs_ptr, columns_ptr, labels_ptr,
    num_rows, num_others, stride, scale,
    BY_KEY: tl.constexpr, OTHERS: tl.constexpr, STATS: tl.constexpr, C: tl.constexpr, MATCHES: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """One tile: its exact weights, and every sum that they change.

    - `sums`: what the tiles before it have come to.
    - `first`: the place of the tile's first other.
    - `lines`: `[lines d]`, their vectors.
    - `line`: `[lines]`, their places.
    - `facts`: of lines that are rows: start and stop of the keys that they see, and the lse to base 2.
    - `line_labels`: a label of each line, for each match.
    - `others_ptr`: k of this head, or q where `BY_KEY`.
    - `lse_ptr`: `[q]`, natural logarithms.
    - `runs_ptr`: `[2 q]`, start and stop of the keys that each row sees.
    - `columns_ptr`: `[c others]`, what weights are multiplied with.
    - `labels_ptr`: `[m others]`, labels of others.
    - `num_rows`: rows of the map.
    - `num_others`: others of the map.
    - `stride`: numbers from one other to the next.
    - `scale`: the factor of the scores.
    - `BY_KEY`: whether lines are keys, and others rows.
    - `OTHERS`: width of the tile.
    - `STATS`: which sums are asked for, as in `line_sums`.
    - `C`: how many columns.
    - `MATCHES`: (earlier, elsewhere, reach) of each match.
    - `SOFTCAP`: the cap on scores; 0 for none.
    - `PRECISION`: of products.
    - `PARTS`: columns so far apart are summed within a thread.
    - `PLAIN`: whether every line sees every cell, away from the diagonal.
    """
    mass, entropy, square, best, where, distance, columns, matches = sums
    other = first + tl.arange(0, OTHERS)
    inside = other < num_others
    if not BY_KEY:
        start, stop, lse = facts
    elif PLAIN:
        lse = tl.load(lse_ptr + other)[None] * LOG2_E
    else:
        start, stop, lse = rows_facts(runs_ptr, lse_ptr, other, num_rows)
        inside = start < stop
        start, stop, lse = start[None], stop[None], lse[None]
    if PLAIN:
        base = others_ptr + tl.cast(first, tl.int64) * stride
        others = tl.load(base + tl.arange(0, OTHERS)[:, None] * stride + tl.arange(0, lines.shape[1])[None])
    else:
        others = vectors(others_ptr, other, stride, inside, lines.shape[1])
    logs = tile_scores(lines, others, scale, SOFTCAP, PRECISION) - lse
    if BY_KEY:
        row, key = other[None], line[:, None]
    else:
        row, key = line[:, None], other[None]
    if not PLAIN:
        logs = tl.where((key >= start) & (key < stop), logs, HIDDEN)
    weights = tl.exp2(logs)
    keys_first = tl.where((first < tl.min(line)) != BY_KEY, 1.0, 0.0)  # in a plain tile: all of them before all rows

    tile_mass = tl.sum(part(weights, PARTS), 1)
    mass += tile_mass
    if STATS[1]:
        entropy += tl.sum(part(weights * logs, PARTS), 1)
    if STATS[2]:
        square += tl.sum(part(weights * weights, PARTS), 1)
    place = tl.arange(0, OTHERS // PARTS) * PARTS  # within the tile, of the first of its PARTS
    if STATS[4]:
        top = tl.max(part(logs, PARTS), 1)
        equal = part(logs, PARTS) == top[:, None]
        nearest = first + tl.arange(0, PARTS)[None] + tl.min(tl.where(equal, place[None, :, None], FAR // 2), 1)
        where = tl.where((top > best) | ((top == best) & (nearest < where)), nearest, where)
        best = tl.maximum(top, best)
    elif STATS[3]:
        best = tl.maximum(best, tl.max(part(logs, PARTS), 1))
    if STATS[5] and PLAIN:
        within = tl.sum(part(weights, PARTS) * place.to(tl.float32)[None, :, None], 1)
        offset = (first - line)[:, None] + tl.arange(0, PARTS)[None]
        distance += (within + tile_mass * offset.to(tl.float32)) * (1.0 - 2.0 * keys_first)
    elif STATS[5]:
        distance += tl.sum(part(weights * tl.abs((key - row).to(tl.float32)), PARTS), 1)
    # Not as a product of matrices: for its few columns that is slower, and as compiled for an H200 it was wrong.
    weighed = ()
    for c in tl.static_range(C):
        if PLAIN:
            value = tl.load(columns_ptr + c * num_others + other)
        else:
            value = tl.load(columns_ptr + c * num_others + other, mask=other < num_others, other=0.0)
        weighed = weighed + (columns[c] + tl.sum(part(weights * value[None], PARTS), 1),)
    matched = ()
    for m in tl.static_range(len(MATCHES)):
        if PLAIN:
            label = tl.load(labels_ptr + m * num_others + other)
        else:
            label = tl.load(labels_ptr + m * num_others + other, mask=other < num_others, other=-3.0)
        matching = line_labels[m][:, None] == label[None]
        if MATCHES[m][0] and not PLAIN:
            matching = matching & (key - row <= -MATCHES[m][2])
        elif MATCHES[m][1] and not PLAIN:
            # Two comparisons: of the distance itself the compiler would lay registers aside, for plain tiles as well.
            matching = matching & ((key - row <= -MATCHES[m][2]) | (key - row >= MATCHES[m][2]))
        sum_of_matching = tl.sum(part(weights * tl.where(matching, 1.0, 0.0), PARTS), 1)
        if MATCHES[m][0] and PLAIN:
            sum_of_matching *= keys_first
        matched = matched + (matches[m] + sum_of_matching,)
    return mass, entropy, square, best, where, distance, weighed, matched


@triton.jit
def line_sums(
    lines_ptr, others_ptr, lse_ptr, runs_ptr, out_ptr, tiles_ptr, columns_ptr, line_labels_ptr, other_labels_ptr,
    num_lines, num_others, num_heads, scale,
    line_text_stride, line_head_stride, line_stride, other_text_stride, other_head_stride, other_stride,
    GROUP: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr, LINES: tl.constexpr, OTHERS: tl.constexpr,
    PRECISION: tl.constexpr, BY_KEY: tl.constexpr, PARTS: tl.constexpr, STATS: tl.constexpr, MATCHES: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Sums over what each line sees, `[s b h lines]`: the chosen STATS, then the MATCHES, then the columns.

    - `lines_ptr`: q, or k where `BY_KEY`.
    - `others_ptr`: k, or q.
    - `lse_ptr`: `[b h q]`, natural logarithms.
    - `runs_ptr`: `[b 2 q]`, start and stop of the keys that each row sees.
    - `out_ptr`: the answer.
    - `tiles_ptr`: `[b blocks 6]`, what `launches.planned_tiles` says of each text and block of lines.
    - `columns_ptr`: `[b c others]`, what weights are multiplied with.
    - `line_labels_ptr`: `[b m lines]`, the labels of lines.
    - `other_labels_ptr`: `[b m others]`, those of others.
    - `num_lines`: lines of a map.
    - `num_others`: others of a map.
    - `num_heads`: query heads.
    - `scale`: the factor of the scores.
    - `line_text_stride`: numbers from a text to the next in `lines_ptr`.
    - `line_head_stride`: from a head to the next there.
    - `line_stride`: from a line to the next there.
    - `other_text_stride`: numbers from a text to the next in `others_ptr`.
    - `other_head_stride`: from a head to the next there.
    - `other_stride`: from one to the next there.
    - `GROUP`: query heads of a key/value head.
    - `D`: width of q and k, a power of two.
    - `SOFTCAP`: the cap on scores; 0 for none.
    - `LINES`: lines of a program.
    - `OTHERS`: width of a tile.
    - `PRECISION`: of products, as `tl.dot` takes it.
    - `BY_KEY`: whether lines are keys, and others rows.
    - `PARTS`: columns that lie so far apart are summed within a thread.
    - `STATS`: which of mass, entropy, square, maximum, strongest and distance are asked for.
    - `MATCHES`: (earlier, elsewhere, reach), a tuple for each match.
    - `C`: how many columns.
    """
    num_blocks = tl.cdiv(num_lines, LINES)
    map_index = tl.program_id(0) // num_blocks
    block = tl.program_id(0) % num_blocks
    if not BY_KEY:  # of a causal map's rows the last see the most, of its keys the first are seen by the most
        block = num_blocks - 1 - block
    text, head = (map_index // num_heads).to(tl.int64), (map_index % num_heads).to(tl.int64)
    map_index = map_index.to(tl.int64)
    num_rows = num_others if BY_KEY else num_lines
    lse_ptr += map_index * num_rows
    runs_ptr += text * 2 * num_rows
    line = block * LINES + tl.arange(0, LINES)
    exists = line < num_lines
    readable = exists
    facts = (0, 0, 0.0)
    if not BY_KEY:
        start, stop, lse = rows_facts(runs_ptr, lse_ptr, line, num_rows)
        readable = start < stop  # what a row holds that sees nothing may be anything, NaN too
        facts = (start[:, None], stop[:, None], lse[:, None])
    line_head = head // GROUP if BY_KEY else head
    other_head = head if BY_KEY else head // GROUP
    lines = vectors(lines_ptr + text * line_text_stride + line_head * line_head_stride, line, line_stride, readable, D)
    others_ptr += text * other_text_stride + other_head * other_head_stride
    columns_ptr += text * num_others * C
    other_labels_ptr += text * len(MATCHES) * num_others
    zeros = tl.zeros([LINES, PARTS], tl.float32)
    line_labels, matches, columns = (), (), ()
    for _ in tl.static_range(C):
        columns = columns + (zeros,)
    for m in tl.static_range(len(MATCHES)):
        labels_ptr = line_labels_ptr + (text * len(MATCHES) + m) * num_lines
        line_labels = line_labels + (tl.load(labels_ptr + line, mask=exists, other=-4.0),)
        matches = matches + (zeros,)

    best = tl.full([LINES, PARTS], HIDDEN, tl.float32)
    where = tl.full([LINES, PARTS], -1, tl.int32)
    sums = (zeros, zeros, zeros, best, where, zeros, columns, matches)
    tiles_ptr += (text * num_blocks + block) * 6
    low, before, before_end = tl.load(tiles_ptr), tl.load(tiles_ptr + 1), tl.load(tiles_ptr + 2)
    after, after_end, high = tl.load(tiles_ptr + 3), tl.load(tiles_ptr + 4), tl.load(tiles_ptr + 5)
    num_before, num_after = before_end - before, after_end - after
    # First the plain tiles of both sides in one loop, which is the one that costs; then those between and around them.
    for index in tl.range(0, num_before + num_after, num_stages=2):
        tile = before + index + tl.where(index >= num_before, after - before_end, 0)
        sums = add_tile(sums, tile * OTHERS, lines, line, facts, line_labels, others_ptr, lse_ptr, runs_ptr,
                        columns_ptr, other_labels_ptr, num_rows, num_others, other_stride, scale,
                        BY_KEY, OTHERS, STATS, C, MATCHES, SOFTCAP, PRECISION, PARTS, True)  # fmt: skip
    for index in tl.range(0, high - low - num_before - num_after, num_stages=1):
        tile = low + index
        tile += tl.where(tile >= before, num_before, 0)
        tile += tl.where(tile >= after, num_after, 0)
        sums = add_tile(sums, tile * OTHERS, lines, line, facts, line_labels, others_ptr, lse_ptr, runs_ptr,
                        columns_ptr, other_labels_ptr, num_rows, num_others, other_stride, scale,
                        BY_KEY, OTHERS, STATS, C, MATCHES, SOFTCAP, PRECISION, PARTS, False)  # fmt: skip
    mass, entropy, square, best, where, distance, columns, matches = sums

    out_ptr += map_index * num_lines + line
    out_stride = (tl.num_programs(0) // num_blocks).to(tl.int64) * num_lines
    top = tl.max(best, 1)
    first_of_equals = tl.min(tl.where(best == top[:, None], where, FAR), 1)
    largest = tl.where(top > HIDDEN, tl.exp2(top), 0.0)
    answers = (tl.sum(mass, 1), tl.sum(entropy, 1) * -LN_2, tl.sum(square, 1), largest,
               first_of_equals.to(tl.float32), tl.sum(distance, 1))  # fmt: skip
    for s in tl.static_range(6):
        if STATS[s]:
            tl.store(out_ptr, answers[s], mask=exists)
            out_ptr += out_stride
    for m in tl.static_range(len(MATCHES)):
        tl.store(out_ptr, tl.sum(matches[m], 1), mask=exists)
        out_ptr += out_stride
    for c in tl.static_range(C):
        tl.store(out_ptr, tl.sum(columns[c], 1), mask=exists)
        out_ptr += out_stride


@triton.jit
def band(
    q_ptr, k_ptr, lse_ptr, runs_ptr, out_ptr, offsets_ptr, num_offsets, num_rows, num_keys, num_heads, scale,
    q_text_stride, q_head_stride, q_stride, k_text_stride, k_head_stride, k_stride,
    GROUP: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr, LINES: tl.constexpr, OTHERS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`[b h q o]` the weight at key `row + offset`: products of vectors, since of a tile few cells would be of use.

    - `q_ptr`: `[b h q d]`.
    - `k_ptr`: `[b g k d]`.
    - `lse_ptr`: `[b h q]`, natural logarithms.
    - `runs_ptr`: `[b 2 q]`, start and stop of the keys that each row sees.
    - `out_ptr`: the answer.
    - `offsets_ptr`: `[o]`, key less row.
    - `num_offsets`: how many these are.
    - `num_rows`: rows of a map.
    - `num_keys`: keys of a map.
    - `num_heads`: query heads.
    - `scale`: the factor of the scores.
    - `q_text_stride`: numbers from a text to the next in q.
    - `q_head_stride`: from a head to the next in q.
    - `q_stride`: from a row to the next in q.
    - `k_text_stride`: numbers from a text to the next in k.
    - `k_head_stride`: from a head to the next in k.
    - `k_stride`: from a key to the next in k.
    - `GROUP`: query heads of a key/value head.
    - `D`: width of q and k, a power of two.
    - `SOFTCAP`: the cap on scores; 0 for none.
    - `LINES`: rows of a program.
    - `OTHERS`: not used: every kernel is launched with it.
    - `PRECISION`: not used, likewise.
    """
    num_blocks = tl.cdiv(num_rows, LINES)
    map_index = (tl.program_id(0) // num_blocks).to(tl.int64)
    text, head = map_index // num_heads, map_index % num_heads
    row = tl.program_id(0) % num_blocks * LINES + tl.arange(0, LINES)
    start, stop, lse = rows_facts(runs_ptr + text * 2 * num_rows, lse_ptr + map_index * num_rows, row, num_rows)
    q = vectors(q_ptr + text * q_text_stride + head * q_head_stride, row, q_stride, start < stop, D).to(tl.float32)
    k_ptr += text * k_text_stride + head // GROUP * k_head_stride
    out_ptr += (map_index * num_rows + row) * num_offsets
    for index in range(num_offsets):
        key = row + tl.load(offsets_ptr + index)
        visible = (key >= start) & (key < stop)
        k = vectors(k_ptr, key, k_stride, visible, D).to(tl.float32)
        logs = finished(tl.sum(q * k, 1), scale, SOFTCAP) - lse
        tl.store(out_ptr + index, tl.where(visible, tl.exp2(logs), 0.0), mask=row < num_rows)


@triton.jit
def pool(
    q_ptr, k_ptr, lse_ptr, runs_ptr, out_ptr, edges_ptr, size, num_rows, num_keys, num_heads, scale,
    q_text_stride, q_head_stride, q_stride, k_text_stride, k_head_stride, k_stride,
    GROUP: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr, LINES: tl.constexpr, OTHERS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`[2 b h p p]` the sum of each block's weights and the largest visible one, -1 for none; a program a block.

    - `q_ptr`: `[b h q d]`.
    - `k_ptr`: `[b g k d]`.
    - `lse_ptr`: `[b h q]`, natural logarithms.
    - `runs_ptr`: `[b 2 q]`, start and stop of the keys that each row sees.
    - `out_ptr`: the answer.
    - `edges_ptr`: `[b 2 p+1]`, where the blocks of rows begin and end, and those of keys.
    - `size`: blocks along a side, p.
    - `num_rows`: rows of a map.
    - `num_keys`: keys of a map.
    - `num_heads`: query heads.
    - `scale`: the factor of the scores.
    - `q_text_stride`: numbers from a text to the next in q.
    - `q_head_stride`: from a head to the next in q.
    - `q_stride`: from a row to the next in q.
    - `k_text_stride`: numbers from a text to the next in k.
    - `k_head_stride`: from a head to the next in k.
    - `k_stride`: from a key to the next in k.
    - `GROUP`: query heads of a key/value head.
    - `D`: width of q and k, a power of two.
    - `SOFTCAP`: the cap on scores; 0 for none.
    - `LINES`: rows of a program.
    - `OTHERS`: keys that a program reads at once.
    - `PRECISION`: of products, as `tl.dot` takes it.
    """
    map_index = (tl.program_id(0) // (size * size)).to(tl.int64)
    text, head = map_index // num_heads, map_index % num_heads
    row_edges = edges_ptr + text * 2 * (size + 1) + tl.program_id(0) % (size * size) // size
    key_edges = edges_ptr + (text * 2 + 1) * (size + 1) + tl.program_id(0) % size
    row_end, first_key, key_end = tl.load(row_edges + 1), tl.load(key_edges), tl.load(key_edges + 1)
    q_ptr += text * q_text_stride + head * q_head_stride
    k_ptr += text * k_text_stride + head // GROUP * k_head_stride
    total = tl.zeros([LINES], tl.float32)
    top = tl.full([LINES], -1.0, tl.float32)
    for first_row in range(tl.load(row_edges), row_end, LINES):
        row = first_row + tl.arange(0, LINES)
        start, stop, lse = rows_facts(runs_ptr + text * 2 * num_rows, lse_ptr + map_index * num_rows, row, num_rows)
        start = tl.maximum(start, first_key)
        stop = tl.minimum(tl.where(row < row_end, stop, 0), key_end)
        q = vectors(q_ptr, row, q_stride, start < stop, D)
        # Not from FAR where nothing is seen: loads run ahead where first + OTHERS < stop, which overflows there.
        for first in range(tl.min(tl.where(start < stop, start, key_end)), tl.max(stop), OTHERS):
            key = first + tl.arange(0, OTHERS)
            k = vectors(k_ptr, key, k_stride, key < key_end, D)
            visible = (key[None] >= start[:, None]) & (key[None] < stop[:, None])
            logs = tile_scores(q, k, scale, SOFTCAP, PRECISION) - lse[:, None]
            weights = tl.where(visible, tl.exp2(tl.where(visible, logs, HIDDEN)), -1.0)
            total += tl.sum(tl.where(visible, weights, 0.0), 1)
            top = tl.maximum(top, tl.max(weights, 1))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))
    tl.store(out_ptr + tl.num_programs(0) + tl.program_id(0), tl.max(top, 0))
