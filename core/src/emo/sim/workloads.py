"""The built-in workloads: what real jobs do, with the slack that real jobs have.

Every builder takes the number of steps and a seed and returns a :class:`Program`. Durations are those
at the maximum clock of whatever GPU plays it. Sizes vary from step to step and from batch to batch;
what is uneven between ranks (stages, tables, experts, input workers) stays so for the whole job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emo.errors import InputError
from emo.sim.physics import KernelSpec
from emo.sim.program import Flag, Job, Program, ThreadBuilder

US = 1_000.0
MS = 1_000_000.0

COMPUTE = 0  # stream of the model's own kernels


# --------------------------------------------------------------------------- kernels


def gemm(us: float) -> KernelSpec:
    """A large matrix product on tensor cores: bound by compute."""
    return KernelSpec(
        compute_ns=us * US, memory_ns=0.35 * us * US, compute_activity=0.95, memory_activity=0.9
    )


def attention(us: float) -> KernelSpec:
    """Fused attention: bound by compute, less dense than a matrix product."""
    return KernelSpec(compute_ns=us * US, memory_ns=0.4 * us * US, compute_activity=0.75, memory_activity=0.8)


def elementwise(us: float) -> KernelSpec:
    """Norms, activations, residuals: bound by memory."""
    return KernelSpec(compute_ns=0.3 * us * US, memory_ns=us * US, compute_activity=0.4, memory_activity=0.95)


def gather(us: float) -> KernelSpec:
    """Embedding look-up: bound by memory, at poor efficiency."""
    return KernelSpec(
        compute_ns=0.2 * us * US, memory_ns=us * US, compute_activity=0.25, memory_activity=0.75
    )


def convolution(us: float) -> KernelSpec:
    """A convolution: bound by compute, with more traffic than a matrix product."""
    return KernelSpec(compute_ns=us * US, memory_ns=0.6 * us * US, compute_activity=0.85, memory_activity=0.9)


def small(us: float) -> KernelSpec:
    """A kernel too small to fill the GPU: mostly latency."""
    return KernelSpec(
        compute_ns=0.4 * us * US,
        memory_ns=0.2 * us * US,
        fixed_ns=0.5 * us * US,
        compute_activity=0.3,
        memory_activity=0.3,
        sm_share=0.25,
    )


def wire(us: float) -> KernelSpec:
    """Communication between GPUs, as far as it takes time on the wire: a few SMs move data."""
    return KernelSpec(
        compute_ns=0.1 * us * US,
        memory_ns=0.6 * us * US,
        fixed_ns=0.4 * us * US,
        compute_activity=0.6,
        memory_activity=0.25,
        link_activity=0.9,
        sm_share=0.12,
    )


def host_copy(us: float) -> KernelSpec:
    """A copy between host and device: a copy engine, no SM."""
    return KernelSpec(
        compute_ns=0.0, memory_ns=0.0, fixed_ns=us * US, memory_activity=0.1, link_activity=0.4, sm_share=0.0
    )


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TO_DEVICE = "Memcpy HtoD (Pinned -> Device)"
TO_DEVICE_PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
TO_HOST = "Memcpy DtoH (Device -> Pinned)"
TO_HOST_PAGEABLE = "Memcpy DtoH (Device -> Pageable)"


@dataclass(frozen=True, slots=True)
class Layer:
    """Kernels of one transformer layer: (number, relative cost is in the spec)."""

    kernels: tuple[int, ...]

    def launch(
        self, thread: ThreadBuilder, scale: float = 1.0, batch: int = -1, cpu_us: float = 12.0
    ) -> None:
        """Launch all kernels, with the CPU work of the framework before each."""
        for kernel in self.kernels:
            thread.cpu(cpu_us * US, "aten::op", batch=-1)
            thread.launch(kernel, COMPUTE, scale=scale, batch=batch)


def transformer_layer(job: Job, us: float, suffix: str = "") -> Layer:
    """A layer whose kernels take ``us`` together: matrix products, attention, elementwise work."""
    parts = (
        (f"layer_norm_kernel{suffix}", elementwise(0.05 * us)),
        (f"ampere_bf16_gemm_qkv{suffix}", gemm(0.2 * us)),
        (f"flash_attention_kernel{suffix}", attention(0.16 * us)),
        (f"ampere_bf16_gemm_out{suffix}", gemm(0.1 * us)),
        (f"residual_norm_kernel{suffix}", elementwise(0.05 * us)),
        (f"ampere_bf16_gemm_up{suffix}", gemm(0.2 * us)),
        (f"gelu_kernel{suffix}", elementwise(0.06 * us)),
        (f"ampere_bf16_gemm_down{suffix}", gemm(0.18 * us)),
    )
    return Layer(tuple(job.kernel(name, spec) for name, spec in parts))


class Link:
    """Communication in the manner of PyTorch: its stream waits for the caller's, and the other way round."""

    def __init__(self, job: Job, stream: int) -> None:
        self.stream = stream
        self.ready = job.new_event()
        self.done = job.new_event()

    def begin(
        self,
        thread: ThreadBuilder,
        group: int,
        kernel: int,
        bytes: int,
        *,
        scale: float = 1.0,
        batch: int = -1,
    ) -> None:
        """Start it once the compute stream got here."""
        thread.record(self.ready, COMPUTE)
        thread.wait(self.ready, self.stream)
        thread.collective(group, kernel, self.stream, bytes=bytes, scale=scale, batch=batch)
        thread.record(self.done, self.stream)

    def finish(self, thread: ThreadBuilder) -> None:
        """The compute stream goes on when it is done."""
        thread.wait(self.done, COMPUTE)


def read_back(job: Job) -> Callable[[ThreadBuilder], None]:
    """``loss.item()``: a small copy to the host, and waiting for it."""
    kernel = job.kernel(TO_HOST_PAGEABLE, host_copy(2.0))

    def call(thread: ThreadBuilder) -> None:
        thread.copy(kernel, COMPUTE, flags=Flag.PAGEABLE | Flag.TO_HOST, bytes=4)
        thread.sync_stream(COMPUTE)

    return call


# --------------------------------------------------------------------------- (1) pipeline


def pipeline(steps: int = 12, seed: int = 0, ranks: int = 4, micro_batches: int = 8) -> Program:
    """1F1B pipeline-parallel training with uneven stages: waiting between stages, and a bubble."""
    rng = np.random.default_rng([seed, 1])
    job = Job(f"pipeline-{ranks}", ranks)
    layer = transformer_layer(job, 1_500)
    backward = transformer_layer(job, 3_000, "_backward")
    head = job.kernel("ampere_bf16_gemm_head", gemm(1_400))
    embed = job.kernel("embedding_kernel", gather(250))
    optimizer = job.kernel("multi_tensor_adam_kernel", elementwise(900))
    norm = job.kernel("norm_kernel", elementwise(150))
    transfer = job.kernel(SEND_RECV, wire(180))
    reduce = job.kernel(ALL_REDUCE, wire(25))
    item = read_back(job)
    world = job.group(range(ranks), "AllReduce", name="0")
    down = [job.group((r, r + 1), "SendRecv", name=f"p{r}-{r + 1}") for r in range(ranks - 1)]
    up = [job.group((r + 1, r), "SendRecv", name=f"p{r + 1}-{r}") for r in range(ranks - 1)]
    layers = _uneven(rng, ranks, 5)
    send_down, recv_down = Link(job, 1), Link(job, 2)
    send_up, recv_up = Link(job, 3), Link(job, 4)
    all_ranks = Link(job, 5)
    nbytes = 33_554_432

    for rank, thread in enumerate(job.main_threads()):

        def forward(batch: int, rank: int = rank, thread: ThreadBuilder = thread) -> None:
            if rank > 0:
                recv_down.begin(thread, down[rank - 1], transfer, nbytes)
                recv_down.finish(thread)
            else:
                thread.launch(embed, COMPUTE, batch=batch)
            for _ in range(layers[rank]):
                layer.launch(thread, batch=batch)
            if rank < ranks - 1:
                send_down.begin(thread, down[rank], transfer, nbytes)
            else:
                thread.launch(head, COMPUTE, batch=batch)

        def back(batch: int, rank: int = rank, thread: ThreadBuilder = thread) -> None:
            if rank < ranks - 1:
                recv_up.begin(thread, up[rank], transfer, nbytes)
                recv_up.finish(thread)
            else:
                thread.launch(head, COMPUTE, scale=2.0, batch=batch)
            for _ in range(layers[rank]):
                backward.launch(thread, batch=batch)
            if rank > 0:
                send_up.begin(thread, up[rank - 1], transfer, nbytes)

        thread.mark()
        thread.cpu(300 * US, "data_loader")
        warm_up = min(ranks - rank - 1, micro_batches)
        for batch in range(warm_up):
            forward(batch)
        for batch in range(micro_batches - warm_up):
            forward(warm_up + batch)
            back(batch)
        for batch in range(micro_batches - warm_up, micro_batches):
            back(batch)
        thread.launch(norm, COMPUTE)
        all_ranks.begin(thread, world, reduce, 4)
        all_ranks.finish(thread)
        item(thread)
        thread.launch(optimizer, COMPUTE)
        _end(job, thread)
    return job.build(
        steps, rng, step_spread=0.01, batch_spread=0.04, batches=micro_batches, unit="step", units=1.0
    )


def _uneven(rng: np.random.Generator, ranks: int, layers: int) -> list[int]:
    """Layers per stage: whole layers never divide evenly."""
    counts = [layers + int(rng.integers(-1, 2)) for _ in range(ranks)]
    counts[0] = layers - 1
    counts[ranks // 2] = layers + 1
    return counts


# --------------------------------------------------------------------------- (10) balanced


def balanced(steps: int = 12, seed: int = 0, ranks: int = 4) -> Program:
    """Data-parallel training, bound by compute and evenly shared: no slack to speak of."""
    rng = np.random.default_rng([seed, 10])
    return _data_parallel(Job("balanced", ranks), steps, rng, input_us=[200.0] * ranks)


def _data_parallel(
    job: Job, steps: int, rng: np.random.Generator, input_us: list[float], layers: int = 8
) -> Program:
    """Forward, backward with gradient all-reduce per bucket beside it, optimizer; input before each step."""
    layer = transformer_layer(job, 1_500)
    backward = transformer_layer(job, 3_000, "_backward")
    head = job.kernel("ampere_bf16_gemm_head", gemm(1_000))
    optimizer = job.kernel("multi_tensor_adam_kernel", elementwise(1_200))
    reduce = job.kernel(ALL_REDUCE, wire(900))
    copy_in = job.kernel(TO_DEVICE, host_copy(60))
    world = job.group(range(job.ranks), "AllReduce", name="0")
    buckets = Link(job, 1)
    item = read_back(job)
    for rank, thread in enumerate(job.main_threads()):
        thread.mark()
        thread.cpu(input_us[rank] * US, "data_loader")
        thread.copy(copy_in, COMPUTE, bytes=4_194_304)
        for _ in range(layers):
            layer.launch(thread, batch=0)
        thread.launch(head, COMPUTE, batch=0)
        for number in range(layers):
            backward.launch(thread, batch=0)
            if number % 2 == 1:
                buckets.begin(thread, world, reduce, 104_857_600)
        buckets.finish(thread)
        thread.launch(optimizer, COMPUTE)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.01, batch_spread=0.02, batches=1)


# --------------------------------------------------------------------------- (2) slow input


def slow_input(steps: int = 12, seed: int = 0, ranks: int = 4) -> Program:
    """Data-parallel training in which one rank's input worker is slow: all others wait for it."""
    rng = np.random.default_rng([seed, 2])
    slow = int(rng.integers(ranks))
    return _data_parallel(
        Job("slow-input", ranks), steps, rng, [11_000.0 if rank == slow else 300.0 for rank in range(ranks)]
    )


# --------------------------------------------------------------------------- (3) recommendation


def recommendation(steps: int = 12, seed: int = 0, ranks: int = 8) -> Program:
    """DLRM-like: embedding tables of skewed sizes, exchanged all-to-all, around small dense networks."""
    rng = np.random.default_rng([seed, 3])
    job = Job("recommendation", ranks)
    bottom = job.kernel("ampere_sgemm_bottom_mlp", gemm(280))
    top = job.kernel("ampere_sgemm_top_mlp", gemm(420))
    interaction = job.kernel("interaction_kernel", elementwise(260))
    lookup = job.kernel("split_embedding_codegen_forward_kernel", gather(700))
    update = job.kernel("split_embedding_backward_codegen_kernel", gather(1_100))
    exchange = job.kernel(SEND_RECV, wire(520))
    reduce = job.kernel(ALL_REDUCE, wire(350))
    copy_in = job.kernel(TO_DEVICE, host_copy(180))
    world = job.group(range(ranks), "AllToAll", name="0")
    dense = job.group(range(ranks), "AllReduce", name="1")
    tables = rng.lognormal(0.0, 0.35, ranks)
    tables /= tables.max()
    pooled, gradients, sums = Link(job, 1), Link(job, 1), Link(job, 2)
    loaded = job.new_event()
    item = read_back(job)
    nbytes = 67_108_864
    for rank, thread in enumerate(job.main_threads()):
        share = float(tables[rank])
        thread.mark()
        thread.cpu(250 * US, "copy_batch_to_gpu")
        thread.copy(copy_in, 3, bytes=16_777_216)
        thread.record(loaded, 3)
        thread.wait(loaded, COMPUTE)
        for _ in range(3):
            thread.cpu(30 * US, "fbgemm::split_embedding_codegen_lookup")
            thread.launch(lookup, COMPUTE, scale=share, batch=0)
        pooled.begin(thread, world, exchange, nbytes)
        for _ in range(3):
            thread.cpu(25 * US, "aten::addmm")
            thread.launch(bottom, COMPUTE, batch=1)
        pooled.finish(thread)
        thread.launch(interaction, COMPUTE, batch=1)
        for _ in range(9):
            thread.cpu(20 * US, "aten::addmm")
            thread.launch(top, COMPUTE, batch=1)
        thread.launch(interaction, COMPUTE, scale=1.6, batch=1)
        gradients.begin(thread, world, exchange, nbytes)
        for _ in range(5):
            thread.cpu(20 * US, "aten::mm")
            thread.launch(bottom, COMPUTE, batch=1)
        sums.begin(thread, dense, reduce, 41_943_040)
        gradients.finish(thread)
        for _ in range(3):
            thread.cpu(30 * US, "fbgemm::split_embedding_backward")
            thread.launch(update, COMPUTE, scale=share, batch=0)
        sums.finish(thread)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.01, batch_spread=0.05, batches=2)


def _end(job: Job, thread: ThreadBuilder) -> None:
    """After the last step: everything is done, and the last mark says so."""
    with job.outside("after"):
        thread.sync_device()
        thread.mark()


# --------------------------------------------------------------------------- (4), (5) language models


def decode(steps: int = 40, seed: int = 0, ranks: int = 2, layers: int = 24) -> Program:
    """Decoding tokens of a language model, tensor-parallel: bound by memory, one CUDA graph per token."""
    rng = np.random.default_rng([seed, 4])
    job = Job("decode", ranks)
    weights = job.kernel("gemv_bf16_kernel", KernelSpec(60 * US, 110 * US, 0.0, 0.35, 0.95))
    cache = job.kernel("paged_attention_v2_kernel", KernelSpec(30 * US, 70 * US, 2 * US, 0.3, 0.85))
    norm = job.kernel("rms_norm_kernel", elementwise(6))
    sample = job.kernel("top_p_sampling_kernel", small(60))
    reduce = job.kernel(ALL_REDUCE, wire(14))
    world = job.group(range(ranks), "AllReduce", name="tp")
    item = read_back(job)
    with job.new_graph() as (graph, capture):
        for _ in range(layers):
            for kernel in (norm, weights, cache, weights):
                capture.launch(kernel, COMPUTE)
            capture.collective(world, reduce, COMPUTE, bytes=1_048_576)
            for kernel in (norm, weights, weights):
                capture.launch(kernel, COMPUTE)
            capture.collective(world, reduce, COMPUTE, bytes=1_048_576)
    for thread in job.main_threads():
        thread.mark()
        thread.cpu(350 * US, "schedule")
        thread.graph(graph, batch=0)
        thread.launch(sample, COMPUTE)
        item(thread)
        thread.cpu(150 * US, "detokenize")
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.003, batch_spread=0.006, units=32.0, unit="token")


def prefill(steps: int = 16, seed: int = 0, ranks: int = 2, layers: int = 16) -> Program:
    """Reading prompts of a language model, tensor-parallel: bound by compute, of very unequal lengths."""
    rng = np.random.default_rng([seed, 5])
    job = Job("prefill", ranks)
    layer = transformer_layer(job, 1_100)
    reduce = job.kernel(ALL_REDUCE, wire(150))
    world = job.group(range(ranks), "AllReduce", name="tp")
    item = read_back(job)
    for thread in job.main_threads():
        thread.mark()
        thread.cpu(400 * US, "schedule")
        for _ in range(layers):
            layer.launch(thread, batch=0, cpu_us=8.0)
            thread.collective(world, reduce, COMPUTE, bytes=33_554_432, batch=0)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, batch_spread=0.2, units=4096.0, unit="token")


# --------------------------------------------------------------------------- (6) serving


def serving(
    steps: int = 12,
    seed: int = 0,
    ranks: int = 2,
    load: float = 0.6,
    max_batch: int = 16,
    tokens: float = 128.0,
) -> Program:
    """Requests come at random and are served in batches by replicas that share a queue.

    ``load`` is the share of the throughput at full batches that is asked for; a step stands for 40
    requests. The latency of requests is what counts.
    """
    rng = np.random.default_rng([seed, 6])
    job = Job(f"serving-{round(load * 100)}", ranks)
    layers = 12
    one_us, more_us = 420.0, 95.0  # of a layer: for a batch of one, and for each further request
    by_size = [
        job.kernel(
            f"fused_layer_kernel_b{size}",
            KernelSpec((120.0 + more_us * size) * US, one_us * US, 0.0, 0.85, 0.85),
        )
        for size in range(1, max_batch + 1)
    ]
    copy_in = job.kernel(TO_DEVICE, host_copy(25))
    item = read_back(job)
    batch_ns = layers * (120.0 + more_us * max_batch) * US * 1.03 + 600 * US
    rate_per_ns = load * ranks * max_batch / batch_ns
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_ns, 40 * steps)).astype(np.int64)
    for thread in job.main_threads():
        thread.mark(units=tokens)
        thread.take(max_batch, patience_ns=int(2 * MS))
        thread.cpu(250 * US, "tokenize")
        thread.copy(copy_in, COMPUTE, bytes=65_536)
        for _ in range(layers):
            thread.cpu(15 * US, "aten::op")
            thread.launch(by_size[0], COMPUTE, flags=Flag.BY_BATCH)
        item(thread)
        thread.cpu(120 * US, "detokenize")
        thread.answer()
        thread.loop(1)
        _end(job, thread)
    return job.build(1, rng, units=tokens, unit="token", arrivals_ns=arrivals, latency_bound=True)


# --------------------------------------------------------------------------- (7) mixture of experts


def experts(steps: int = 12, seed: int = 0, ranks: int = 4, layers: int = 5) -> Program:
    """Mixture of experts, expert-parallel: tokens go to the experts unevenly, and differently every step."""
    rng = np.random.default_rng([seed, 7])
    job = Job("experts", ranks)
    attention_layer = transformer_layer(job, 900)
    expert = job.kernel("grouped_gemm_kernel", gemm(1_000))
    expert_backward = job.kernel("grouped_gemm_backward_kernel", gemm(2_000))
    router = job.kernel("topk_router_kernel", small(40))
    exchange = job.kernel(SEND_RECV, wire(260))
    reduce = job.kernel(ALL_REDUCE, wire(1_200))
    optimizer = job.kernel("multi_tensor_adam_kernel", elementwise(1_500))
    world = job.group(range(ranks), "AllToAll", name="ep")
    data = job.group(range(ranks), "AllReduce", name="dp")
    popular = rng.lognormal(0.0, 0.25, ranks)
    popular /= popular.mean()
    tokens, sums = Link(job, 1), Link(job, 2)
    item = read_back(job)
    for rank, thread in enumerate(job.main_threads()):

        def through_experts(kernel: int, rank: int = rank, thread: ThreadBuilder = thread) -> None:
            tokens.begin(thread, world, exchange, 50_331_648)
            tokens.finish(thread)
            thread.launch(kernel, COMPUTE, scale=float(popular[rank]), batch=1 + rank)
            tokens.begin(thread, world, exchange, 50_331_648)
            tokens.finish(thread)

        thread.mark()
        thread.cpu(300 * US, "data_loader")
        for _ in range(layers):
            attention_layer.launch(thread, batch=0)
            thread.launch(router, COMPUTE)
            through_experts(expert)
        for _ in range(layers):
            through_experts(expert_backward)
            attention_layer.launch(thread, scale=2.0, batch=0)
        sums.begin(thread, data, reduce, 134_217_728)
        sums.finish(thread)
        thread.launch(optimizer, COMPUTE)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.01, batch_spread=0.08, batches=1 + ranks)


# --------------------------------------------------------------------------- (8) vision


def vision(steps: int = 16, seed: int = 0, ranks: int = 2) -> Program:
    """Convolutional training: images of the next step are copied while this one computes."""
    rng = np.random.default_rng([seed, 8])
    job = Job("vision", ranks)
    stages = [
        (
            job.kernel(f"implicit_convolve_sgemm_stage{n}", convolution(us)),
            job.kernel(f"batch_norm_relu_kernel_stage{n}", elementwise(0.3 * us)),
        )
        for n, us in enumerate((420.0, 380.0, 340.0, 300.0))
    ]
    optimizer = job.kernel("multi_tensor_sgd_kernel", elementwise(300))
    reduce = job.kernel(ALL_REDUCE, wire(450))
    copy_in = job.kernel(TO_DEVICE, host_copy(9_000))
    world = job.group(range(ranks), "AllReduce", name="0")
    copied, used = job.new_event(), job.new_event()
    buckets = Link(job, 1)
    item = read_back(job)

    def fetch(thread: ThreadBuilder) -> None:
        thread.cpu(900 * US, "data_loader")
        thread.wait(used, 2)
        thread.copy(copy_in, 2, bytes=154_140_672)
        thread.record(copied, 2)

    for thread in job.main_threads():
        with job.outside("before"):
            fetch(thread)
        thread.mark()
        thread.wait(copied, COMPUTE)
        for convolve, rest in stages:
            for _ in range(4):
                thread.cpu(18 * US, "aten::convolution")
                thread.launch(convolve, COMPUTE, batch=0)
                thread.launch(rest, COMPUTE, batch=0)
        thread.record(used, COMPUTE)
        fetch(thread)
        for number, (convolve, rest) in enumerate(reversed(stages)):
            for _ in range(4):
                thread.cpu(18 * US, "aten::convolution_backward")
                thread.launch(convolve, COMPUTE, scale=2.0, batch=0)
                thread.launch(rest, COMPUTE, scale=2.0, batch=0)
            if number % 2 == 1:
                buckets.begin(thread, world, reduce, 51_380_224)
        buckets.finish(thread)
        thread.launch(optimizer, COMPUTE)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.01, batch_spread=0.01, units=256.0, unit="image")


# --------------------------------------------------------------------------- (9) CPU-bound


def cpu_bound(steps: int = 30, seed: int = 0, ranks: int = 1) -> Program:
    """A small model: the CPU cannot launch its little kernels as fast as the GPU runs them."""
    rng = np.random.default_rng([seed, 9])
    job = Job("cpu-bound", ranks)
    kernels = [job.kernel(f"vectorized_elementwise_kernel_{n}", small(us)) for n, us in enumerate((6, 9, 14))]
    item = read_back(job)
    for thread in job.main_threads():
        thread.mark()
        thread.cpu(200 * US, "data_loader")
        for number in range(120):
            thread.cpu(22 * US, "aten::op")
            thread.launch(kernels[number % 3], COMPUTE, batch=0)
        item(thread)
        _end(job, thread)
    return job.build(steps, rng, step_spread=0.02)


# --------------------------------------------------------------------------- all


def pipeline_8(steps: int = 8, seed: int = 0) -> Program:
    """The pipeline on 8 GPUs."""
    return pipeline(steps, seed, ranks=8, micro_batches=16)


WORKLOADS: dict[str, Callable[..., Program]] = {
    "pipeline": pipeline,
    "pipeline-8": pipeline_8,
    "slow-input": slow_input,
    "recommendation": recommendation,
    "decode": decode,
    "prefill": prefill,
    "serving": serving,
    "experts": experts,
    "vision": vision,
    "cpu-bound": cpu_bound,
    "balanced": balanced,
}
"""Built-in workloads by name."""


def workload(name: str, steps: int | None = None, seed: int = 0) -> Program:
    """A built-in workload, with its own number of steps by default. Raises InputError for an unknown name."""
    if name not in WORKLOADS:
        raise InputError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    make = WORKLOADS[name]
    return make(seed=seed) if steps is None else make(steps, seed)
