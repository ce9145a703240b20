"""Makes vLLM's prefill/decode connectors usable on a few CPU cores without a GPU.

pdctl's installer of real engines puts this module and a .pth file that imports
it into vLLM's virtual environment, so every process of a server has it and no
launch command has to mention it. Three things stand in the way on such a machine:

* NIXL's Python layer asks UCX for a progress thread with no pause, which keeps
  one core busy per idle server;
* vLLM's shared-memory queue spins on sched_yield while a prefill server holds
  blocks for a peer, and on a recent kernel that starves every other process
  pinned to the same cores until the lease ends;
* the Mooncake connector asks torch for the current accelerator, and torch raises
  where there is none.
"""

import os
import time
from types import ModuleType
from typing import Any

from pdctl_import_hooks import after_import

_PROGRESS_PAUSE_US = int(os.environ.get("PDCTL_NIXL_PROGRESS_PAUSE_US", "1000"))
_YIELD_SLEEP_S = int(os.environ.get("PDCTL_YIELD_SLEEP_US", "200")) / 1e6


class _PacedBindings(ModuleType):
    """NIXL's bindings, but with agents whose progress thread pauses."""

    def __init__(self, bindings: ModuleType) -> None:
        super().__init__(bindings.__name__, bindings.__doc__)
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        config.pthrDelay = _PROGRESS_PAUSE_US
        return self._bindings.nixlAgent(name, config)


def _pace_progress_thread(nixl_api: ModuleType) -> None:
    nixl_api.nixlBind = _PacedBindings(nixl_api.nixlBind)  # type: ignore[attr-defined]


def _sleep_instead_of_yield(vllm_utils: ModuleType) -> None:
    vllm_utils.sched_yield = lambda: time.sleep(_YIELD_SLEEP_S)  # type: ignore[attr-defined]


def _pretend_one_accelerator(_connector: ModuleType) -> None:
    import torch

    if torch.accelerator.is_available():
        return
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *_args, **_kwargs: None
    torch.accelerator.synchronize = lambda *_args, **_kwargs: None


if _PROGRESS_PAUSE_US > 0:
    after_import("nixl_cu12._api", _pace_progress_thread)
if _YIELD_SLEEP_S > 0:
    after_import("vllm.distributed.utils", _sleep_instead_of_yield)
after_import(
    "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector",
    _pretend_one_accelerator,
)
