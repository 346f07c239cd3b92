"""examples/remaining_life.ipynb, as plain Python: `python examples/make.py remaining_life` makes it anew."""

# %% [markdown]
# # How long will it last?
#
# An engine flies, and 21 sensors are read in every cycle. Going by the last 30 cycles: how many has it left? A small
# net with attention shall say so, and we shall see which cycles its heads read.
#
# **All engines here are SIMULATED.** They have the size and the sensors of NASA's C-MAPSS, and no number below is
# a result on it. The net and the training are small as well, so that this takes less than a minute; `manyheads train
# rul` is the whole experiment.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import manyheads as mh
from manyheads.lab.training import (
    CAP,
    CHANNELS,
    LENGTH,
    RulNet,
    Scaling,
    cycles_read,
    fit_ridge,
    predicted,
    rmse,
    simulate,
    split,
    windows_of,
)

fleet = simulate(seed=0, trained=60, tested=60)
print(f"{fleet.name}: {len(fleet.train)} engines run until they failed, {len(fleet.test)} stopped before")

# %% [markdown]
# ## One engine's life
#
# Three sensors, from the first cycle to the last. For a long time nothing happens but noise. Then it goes quickly.

# %%
engine = max(fleet.train, key=lambda each: len(each.rows))
figure, panels = plt.subplots(3, 1, figsize=(7, 4), sharex=True, layout="constrained")
for panel, name in zip(panels, ("T50", "Ps30", "phi"), strict=True):
    panel.plot(engine.rows[:, CHANNELS.index(name)], color="#1B1E26", linewidth=0.8)
    panel.set_ylabel(name)
panels[0].set_title(f"SIMULATED engine {engine.unit}: {len(engine.rows)} cycles to failure")
panels[-1].set_xlabel("cycle")
plt.show()

# %% [markdown]
# ## What is asked
#
# Windows of 30 cycles, and what was left after each. Nobody can tell 300 from 200 cycles left on a sound engine, so
# the truth is capped. Every fifth engine is held back to choose by; test engines are asked once each, after their last
# cycle.

# %%
learning, held = split(fleet.train)
scaling = Scaling.of(learning)
train, validating, test = (
    windows_of(learning, scaling),
    windows_of(held, scaling, 10),
    windows_of(fleet.test, scaling, 1),
)
truth = test.capped.numpy()
print(f"{len(train.left):,} windows of {LENGTH} cycles and {len(scaling.kept)} channels; truth capped at {CAP}")
print("channels that never change, left out:", *scaling.constant)

# %% [markdown]
# ## Train: with attention, and without
#
# The same net twice, one without its attention. The same batches, and two seeds of each.


# %%
def trained(attention, seed, steps=400):
    torch.manual_seed(seed)
    net = RulNet(len(scaling.kept), hidden=64, num_heads=8, attention=attention)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        generator = torch.Generator().manual_seed(1_000 * seed + step)
        which = torch.randint(len(train.left), (32,), generator=generator)
        loss = (net(train.cycles[which]) - train.capped[which] / CAP).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slower.step()
    return net.eval()


SEEDS = (0, 1)
nets = {(attention, seed): trained(attention, seed) for seed in SEEDS for attention in (True, False)}
said = {key: predicted(net, test.cycles, CAP) for key, net in nets.items()}
line = fit_ridge(*(part.numpy() for part in (train.cycles, train.capped, validating.cycles, validating.capped)))
ridge = np.clip(line(test.cycles.numpy()), 0, CAP)
mean = np.full(len(truth), train.capped.numpy().mean())

print("SIMULATED engines, root of the mean squared error in cycles:")
for attention in (True, False):
    name = "with attention" if attention else "without"
    print(f"  {name:20}", "  ".join(f"{rmse(said[attention, seed], truth):5.1f}" for seed in SEEDS), " (two seeds)")
print(f"  {'a straight line':20} {rmse(ridge, truth):5.1f}")
print(f"  {'always the mean':20} {rmse(mean, truth):5.1f}")

# %% [markdown]
# Look at the straight line, a ridge regression on means, slopes and the last cycles. Whoever reports a net without it
# reports nothing. And look how far two seeds of one net lie apart, before you believe in a difference between two nets.

# %%
figure, panels = plt.subplots(1, 3, figsize=(8.4, 3), sharey=True, layout="constrained")
shown = {"with attention": said[True, 0], "without": said[False, 0], "a straight line": ridge}
for panel, (name, values) in zip(panels, shown.items(), strict=True):
    panel.plot([0, CAP], [0, CAP], color="#C9C4B8")
    panel.plot(truth, values, ".", color="#1B1E26")
    panel.set(title=name, xlabel="true cycles left", aspect="equal")
panels[0].set_ylabel("predicted")
figure.suptitle("SIMULATED engines")
plt.show()

# %% [markdown]
# ## Which cycles do heads read?
#
# A recording of the net, as of any model. For each head, how much of its weight each of the 30 cycles gets: of engines
# near their end, and of the others. The dashed line is an even reading.

# %%
net = nets[True, 0]
read = cycles_read(net, test.cycles)
worn = torch.from_numpy(truth) <= 50
figure, panels = plt.subplots(2, 4, figsize=(9, 3.8), sharex=True, sharey=True, layout="constrained")
for head, panel in enumerate(panels.flat):
    panel.axhline(1 / LENGTH, color="#C9C4B8", linestyle="--")
    panel.plot(range(-LENGTH + 1, 1), read[~worn, head].mean(0), color="#9AA0A6", label="more than 50 left")
    panel.plot(range(-LENGTH + 1, 1), read[worn, head].mean(0), color="#D55E00", label="at most 50 left")
    panel.set_title(f"head {head}", fontsize=9)
panels[0, 0].legend(fontsize=7)
figure.supxlabel("cycle, 0 is the last")
figure.suptitle("SIMULATED engines: mean weight on each cycle")
plt.show()
late = read[:, :, -10:].sum(-1)
print(f"weight on the last ten cycles, evenly {10 / LENGTH:.2f}")
for name, which in (("at most 50 left", worn), ("more", ~worn)):
    print(f"  {name:16}", "  ".join(f"{share:.2f}" for share in late[which].mean(0).tolist()))

# %% [markdown]
# Of sound engines every cycle says the same, and heads read about evenly. Near the end they part: some turn to the last
# cycles, at least one to earlier ones.
#
# ## And does it matter?
#
# What a head reads is not what it is worth. So: each head silent, and then all of them, without training again.

# %%
whole = rmse(predicted(net, test.cycles, CAP), truth)
for heads in (*(f"L0H{head}" for head in range(8)), "L0"):
    with mh.applied(net, mh.Ablate(heads)):
        without = rmse(predicted(net, test.cycles, CAP), truth)
    print(f"without {'all of them' if heads == 'L0' else heads:11} {without:5.1f} cycles ({without - whole:+.1f})")

# %% [markdown]
# One at a time they are hardly missed; all at once they are. Heads stand in for each other.
#
# ## What this does not show
#
# Nothing about real engines: sensors here answer to wear by straight lines, which flatters the straight line. Nothing
# about attention being better or worse: two seeds cannot say, and the net with attention has more parameters.
# `docs/reference/rul.md` has five seeds of a larger net, where a gain is not shown either. And a net that loses all
# heads at once was never trained to live without them: the twin that was, is the fairer comparison.
#
# **Try it.** `simulate(seed=1)`. Or NASA's own files, if you have them: `read_cmapss(Path("train_FD001.txt"))`, also of
# `manyheads.lab.training`.
