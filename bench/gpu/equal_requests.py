"""A batch of equal requests in a paged cache, attended to by our kernel and by those of others."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

BLOCK = 16


@dataclass
class Workload:
    """A batch of equal requests in a paged cache, laid out as vLLM does on CUDA."""

    requests: int
    length: int  # tokens of each request, including the new ones
    new: int  # tokens of each that are new: queries
    device: torch.device
    heads: int = 32
    head_size: int = 128

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        blocks = -(-self.length // BLOCK)
        shape = (self.requests * blocks, BLOCK, self.heads, 2 * self.head_size)
        on_device = {"device": self.device, "dtype": torch.float16}
        self.cache = torch.randn(shape, **on_device).transpose(1, 2)
        order = torch.randperm(self.requests * blocks, device=self.device)
        self.table = order.reshape(self.requests, blocks).int()
        tokens = self.requests * self.new
        self.query = torch.randn((tokens, self.heads, self.head_size), **on_device)
        self.output = torch.empty_like(self.query)
        self.starts = torch.arange(0, tokens + 1, self.new, device=self.device, dtype=torch.int32)
        self.lengths = torch.full((self.requests,), self.length, device=self.device).int()
        self.scale = self.head_size**-0.5

    @cached_property
    def tiles(self) -> Any:
        """The batch's tiles on the device."""
        from kvscope_kernels.engine.cuda import launch
        from kvscope_kernels.engine.cuda.batch import cut_batch
        from kvscope_kernels.planning import tile_tokens

        on_gpu = self.device.type == "cuda"
        properties = torch.cuda.get_device_properties(self.device) if on_gpu else None
        processors = properties.multi_processor_count if properties else 2
        starts, lengths = self.starts.cpu().numpy(), self.lengths.cpu().numpy()
        work = cut_batch(starts, lengths, BLOCK, self.heads, tile_tokens(1, 2), processors)
        [tiles] = launch.to_device(work, self.heads, self.head_size, 1, self.device).tiles
        return tiles

    @cached_property
    def segments(self) -> Any:
        """Room for all events of one call, used by each call anew."""
        from kvscope_kernels.engine.cuda.buffer import HEADER_WORDS, CudaSegments
        from kvscope_kernels.kv_events import RECORD_WORDS

        events, count = self.tiles.host.events(1), self.tiles.host.segments(1)
        words = [(events, RECORD_WORDS), (count, HEADER_WORDS), (1,)]
        records, headers, counter = (
            torch.zeros(size, dtype=torch.int64, device=self.device) for size in words
        )
        return CudaSegments("attention", 0, records, headers, counter, 0, events, 0, count)

    def ours(self, record: bool = False) -> torch.Tensor:
        """Our kernel."""
        from kvscope_kernels.engine.cuda import launch

        launch.attend(
            *(self.query, self.cache, self.output, self.table, self.tiles, self.scale),
            self.segments if record else None,
        )
        return self.output

    def plain(self) -> torch.Tensor:
        """PyTorch's attention, without blocks."""
        kv = self.cache[self.table.long()].transpose(2, 3).flatten(1, 2)[:, : self.length]
        key, value = kv.transpose(1, 2).split(self.head_size, -1)
        query = self.query.unflatten(0, (self.requests, self.new)).transpose(1, 2)
        hidden = torch.ones(self.new, self.length, device=self.device, dtype=torch.bool)
        mask = hidden.tril(self.length - self.new)
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return out.transpose(1, 2).flatten(0, 1)

    def vllm_triton(self) -> torch.Tensor:
        """vLLM's TRITON_ATTN, as its backend calls it."""
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        unified_attention(
            **self._attention,
            window_size=(-1, -1),
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            **self._parts,
        )
        return self.output

    @property
    def _attention(self) -> dict[str, Any]:
        """Arguments of vLLM's kernels, by the names that all of them have."""
        key, value = self.cache.transpose(1, 2).split(self.head_size, -1)
        return {
            **{"q": self.query, "k": key, "v": value, "out": self.output},
            **{"cu_seqlens_q": self.starts, "max_seqlen_q": self.new},
            **{"seqused_k": self.lengths, "max_seqlen_k": self.length},
            **{"block_table": self.table, "softmax_scale": self.scale, "causal": True},
        }

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """Its scratch memory, sized as its metadata builder does."""
        most, splits = 128 // self.heads, 16
        sums = torch.empty((most, self.heads, splits), device=self.device)
        return {
            "seq_threshold_3D": most,
            "num_par_softmax_segments": splits,
            "softmax_segm_output": sums.new_empty((*sums.shape, self.head_size)),
            "softmax_segm_max": sums,
            "softmax_segm_expsum": torch.empty_like(sums),
        }

    def vllm_flash(self) -> torch.Tensor:
        """vLLM's FLASH_ATTN."""
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        flash_attn_varlen_func(
            **self._attention,
        )
        return self.output
