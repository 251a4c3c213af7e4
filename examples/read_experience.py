"""Read an experiment's experience as numpy arrays, beside its trainer: python read_experience.py EXP

A tap never holds the run up; what the trainer is done with before the tap gets to it is missed, and counted.
"""

import sys

import heddle

if len(sys.argv) != 2:
    sys.exit("which one? python read_experience.py EXP; `heddle ls` shows them")
exp = heddle.connect().experiment(sys.argv[1])
tap = exp.tap("example")
for number, batch in enumerate(tap, start=1):
    arrays = batch.arrays  # obs [rows, T+1, ...] or obs.<key>, action, reward, terminated, truncated [rows, T], ...
    returns = arrays["episode_return"]
    ended = returns[arrays["episode_length"] > 0]
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items() if name.split(".")[0] == "obs")
    print(f"shard {batch.shard} seq {batch.seq}: {shapes}, episode returns {ended.round(1).tolist()}")
    if number == 20:
        break
print(f"missed {tap.missed}")
tap.remove()
