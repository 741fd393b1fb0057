"""Two processes that share the lanes, killed in the middle and resumed: the same bits.

DistributedDataParallel reduces gradients once a segment, so that all processes must have the same segments: each makes
its own `Truncation` from the same seed, law and options, and draws the same lengths, without a word to the others. Each
has its half of the lanes and carries their state. What a process has to save is the model, the optimizer, the state,
the position in the stream, and `cut.state_dict()`; the random generators of nobody else are touched.

Three runs: two processes; two that are killed after update KILL and started again from what they saved at update SAVE;
and one process with all the lanes. Killed or not, the parameters agree in every bit. One process agrees up to the order
of sums. (In your own cluster, `torchrun` starts the processes, and the address takes the place of the file.)

Expected output:

    killed after update 13, by signal SIGKILL; saved at update 8
    20 updates, 145 steps

    largest difference of a parameter
    two processes, killed and resumed or not  0e+00
    two processes or one with all lanes       7e-08
    Killed and resumed, the two processes have the same bits.
"""

import argparse
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # in time: a group that exists by then, it keeps for ever
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import artbp

LANES, UNITS, UPDATES, SAVE, KILL = 8, 16, 20, 8, 13


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = artbp.nn.LSTM(1, UNITS), nn.Linear(UNITS, 1)

    def forward(self, x, state, links):
        out, state = self.lstm(x, state, links=links)
        return self.head(out), state


def train(rank: int, processes: int, folder: Path, name: str, killed: bool = False) -> None:
    """All updates, or from what was saved on; what they leave is saved as NAME."""
    torch.manual_seed(0)  # the same parameters to begin with
    model = Model()
    ours = slice(rank * LANES // processes, (rank + 1) * LANES // processes)
    whole = torch.randn(1000, LANES, 1, generator=torch.Generator().manual_seed(1)).cumsum(0) / 10
    stream = whole[:, ours]  # (T, B/processes, 1)
    if processes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # this machine alone
        dist.init_process_group("gloo", init_method=f"file://{folder}/{name}-meet", rank=rank, world_size=processes)
    parallel = DistributedDataParallel(model) if processes > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    cut = artbp.Truncation(artbp.PowerLaw(mean=10, alpha=4), seed=0)  # the same seed everywhere
    zeros = torch.zeros(1, stream.shape[1], UNITS)
    state, position, update = (zeros, zeros), 0, 0

    saved = folder / f"saved-{rank}.pt"
    if saved.exists():
        content = torch.load(saved, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        cut.load_state_dict(content["cut"])
        state, position, update = content["state"], content["position"], content["update"]

    for x, links in cut.segments(stream[position:-1]):
        targets = stream[position + 1 : position + 1 + len(x)]
        out, state = parallel(x, artbp.detach(state), links)
        # DistributedDataParallel takes the mean over the processes, hence their number
        ((out - targets).square().sum() * processes / (cut.mean * LANES)).backward()
        optimizer.step()
        optimizer.zero_grad()
        position, update = position + len(x), update + 1
        if killed and update == SAVE:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "cut": cut.state_dict()}
            torch.save({**content, "state": artbp.detach(state), "position": position, "update": update}, saved)
        if killed and update == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if update == UPDATES:
            break
    if rank == 0:
        torch.save({"model": model.state_dict(), "position": position}, folder / f"{name}.pt")
    if processes > 1:
        del parallel  # only a group that nobody holds joins its threads; else one may abort this process as it ends
        dist.destroy_process_group()


def difference(folder: Path, one: str, other: str) -> float:
    a, b = (torch.load(folder / f"{name}.pt", weights_only=True)["model"] for name in (one, other))
    return max((a[key] - b[key]).abs().max().item() for key in a)


def main() -> None:
    argparse.ArgumentParser(description="Two processes, killed and resumed.").parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train(0, 1, folder, "alone")
        mp.spawn(train, (2, folder, "two"), nprocs=2)
        try:
            mp.spawn(train, (2, folder, "killed", True), nprocs=2)
        except mp.ProcessExitedException as error:
            print(f"killed after update {KILL}, by signal {error.signal_name}; saved at update {SAVE}")
        mp.spawn(train, (2, folder, "resumed"), nprocs=2)
        position = torch.load(folder / "two.pt", weights_only=True)["position"]
        print(f"{UPDATES} updates, {position} steps\n")
        print("largest difference of a parameter")
        print(f"two processes, killed and resumed or not  {difference(folder, 'two', 'resumed'):.0e}")
        print(f"two processes or one with all lanes       {difference(folder, 'two', 'alone'):.0e}")
        same = difference(folder, "two", "resumed") == 0
    print(f"Killed and resumed, the two processes have {'the same bits' if same else 'OTHER bits'}.")


if __name__ == "__main__":
    main()
