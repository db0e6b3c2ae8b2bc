"""One process, or several that `torchrun` started: each learns from its own part of a batch, and all stay alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

LONGEST = timedelta(days=1)
"""That the others wait while the first makes the crops or judges."""


@dataclass(frozen=True)
class ProcessGroup:
    """rank: this process, 0 is the one that writes; size: how many there are."""

    rank: int
    size: int
    device: torch.device

    def agreed(self, *values: float) -> list[float]:
        """What the first process says, in all of them."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.broadcast(tensor, 0)
        return [float(one) for one in tensor.tolist()]

    def together(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all processes."""
        if self.size == 1:
            return module
        return DistributedDataParallel(module, [self.device] if self.device.type == "cuda" else None)


@contextmanager
def crew(device: str = "auto") -> Iterator[ProcessGroup]:
    """This process's place among those of torchrun; alone without it. NCCL between GPUs, gloo between processors."""
    gpu = device != "cpu" and torch.cuda.is_available()
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup(0, 1, torch.device("cuda" if gpu else "cpu"))
        return
    distributed.init_process_group("nccl" if gpu else "gloo", timeout=LONGEST)
    try:
        rank = distributed.get_rank()
        own = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(own)
        yield ProcessGroup(rank, distributed.get_world_size(), own)
        distributed.barrier()  # a process that leaves early would break the connections of those still at work
    finally:
        distributed.destroy_process_group()
