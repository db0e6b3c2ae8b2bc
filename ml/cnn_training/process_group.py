"""Train in one process, or in several that `torchrun` started: each takes a part of every batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

MAX_WAIT = timedelta(days=1)
"""How long the other processes wait while the first one prepares crops or validates."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together.

    rank: the number of this process; only process 0 writes files. size: the number of processes
    """

    rank: int
    size: int
    device: torch.device

    def broadcast(self, *values: float) -> list[float]:
        """Return the values that the first process passed, in every process."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.broadcast(tensor, 0)
        return [float(value) for value in tensor.tolist()]

    def parallelise(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over all processes."""
        if self.size == 1:
            return module
        return DistributedDataParallel(module, [self.device] if self.device.type == "cuda" else None)


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the processes of torchrun; without torchrun, the group is this process alone.

    Processes communicate by NCCL if they use GPUs, else by gloo.
    """
    gpu = device != "cpu" and torch.cuda.is_available()
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup(0, 1, torch.device("cuda" if gpu else "cpu"))
        return
    distributed.init_process_group("nccl" if gpu else "gloo", timeout=MAX_WAIT)
    try:
        rank = distributed.get_rank()
        own = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(own)
        yield ProcessGroup(rank, distributed.get_world_size(), own)
        distributed.barrier()  # a process that leaves early would break the connections of the others
    finally:
        distributed.destroy_process_group()
