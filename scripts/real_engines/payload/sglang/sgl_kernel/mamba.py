"""The state-space kernels of the stand-in sgl_kernel, equally absent."""

from sgl_kernel import __getattr__ as __getattr__
