"""Makes SGLang's prefill/decode servers start and transfer KV without a GPU.

pdctl's installer of real engines puts this module, a .pth file that imports it
and an entry point that names it as an SGLang plugin into SGLang's virtual
environment, so that no launch command has to mention it.
"""

import importlib.metadata

from pdctl_import_hooks import before_import

_kept_alive: list[object] = []


def _declare_torchvision_ops() -> None:
    """Declare the two operators whose C++ part cannot load beside a CPU torch.

    torchvision registers fake kernels for them while it is imported and fails if
    nobody declared them. Text serving never calls either.
    """
    if importlib.metadata.version("torchvision").endswith("+cpu"):
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # A Library takes its declarations back when it is collected.
    _kept_alive.append(library)


def register_plugin() -> None:
    """Send page indices as host arrays: the other way needs pinned memory.

    SGLang's prefill takes the pinned-memory path for every sender that says it
    can, without asking whether there is a device to pin for.
    """
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False


before_import("torchvision", _declare_torchvision_ops)
