#include "nanovllm/ops/cpu/gemm.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/memory.h"
#include "nanovllm/ops/cpu/parallel.h"

namespace nanovllm::cpu {

namespace {

const GemmKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return plain::kGemmKernels;
    case Isa::kAvx2:
      return avx2::kGemmKernels;
    case Isa::kAvx512:
      return avx512::kGemmKernels;
    case Isa::kAvx512Bf16:
      return avx512bf16::kGemmKernels;
  }
  return plain::kGemmKernels;
}

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Position of a float dtype in the kernels' tables.
size_t index_of(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "no matrix products in {}", dtype_name(dtype));
  return static_cast<size_t>(dtype);
}

/// Multiply-adds, and four for each byte of weights, up to which a parallel region costs more than
/// it saves: about 2 microseconds of one thread.
constexpr int64_t kParallelWork = 1'000'000;

}  // namespace

Gemm::Gemm(Isa isa, int threads)
    : kernels_(kernels_for(isa)),
      threads_(threads),
      scratch_(allocate(static_cast<size_t>(threads * kGemmScratchFloats) * sizeof(float))) {
  if (isa == Isa::kAvx512Bf16) onednn_.emplace();
}

std::shared_ptr<const PackedWeight> Gemm::pack(std::span<const Tensor> parts, DType dtype,
                                               unsigned use) const {
  auto w = std::make_shared<PackedWeight>();
  w->dtype = dtype;
  check(!parts.empty(), "a weight without parts");
  w->k = parts[0].shape[1];
  for (const Tensor& part : parts) {
    check(part.rank == 2 && part.shape[1] == w->k, "parts of a weight differ in their columns");
    w->n += part.shape[0];
  }
  if (use & kForEmbedding) w->rows.assign(parts.begin(), parts.end());
  if (!(use & kForMatmul)) return w;

  const int64_t columns = kernels_.panel_columns;
  const int64_t panels = div_up(w->n, columns);
  const int64_t padded_k = dtype == DType::kBF16 ? div_up(w->k, 32) * 32 : w->k;
  const auto pack_panel = kernels_.pack[index_of(dtype)];
  w->panel_bytes = columns * padded_k * static_cast<int64_t>(dtype_size(dtype));
  w->panels = allocate(static_cast<size_t>(panels * w->panel_bytes));

  std::vector<GemmRow> rows(static_cast<size_t>(panels * columns));
  auto row = rows.begin();
  for (const Tensor& part : parts)
    for (int64_t i = 0; i < part.shape[0]; ++i)
      *row++ = {part.rows(i, 1).data, static_cast<int>(index_of(part.dtype))};
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t p; (p = next++) < panels;)
      pack_panel(static_cast<char*>(w->panels.get()) + p * w->panel_bytes,
                 &rows[static_cast<size_t>(p * columns)], w->k);
  };
  // Threads of its own: the thread that loads is not the one that runs the steps and keeps helpers.
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads_; ++i) helpers.emplace_back(work);
    work();
  }  // joined before `w` moves out of the frame that they read
  return w;
}

void Gemm::matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias) {
  const int64_t m = x.shape[0];
  check(w.panels != nullptr, "this weight was packed for embedding alone");
  check(x.rank == 2 && x.shape[1] == w.k && x.dtype == w.dtype,
        "matmul: x is {} [{}, {}], the weight {} [{}, {}]", dtype_name(x.dtype), m, x.shape[1],
        dtype_name(w.dtype), w.n, w.k);
  check(out.rank == 2 && out.shape[0] == m && out.shape[1] == w.n &&
            (out.dtype == w.dtype || out.dtype == DType::kF32),
        "matmul: out is {} [{}, {}], not [{}, {}]", dtype_name(out.dtype), out.shape[0],
        out.shape[1], m, w.n);
  check(!bias || (bias.dtype == DType::kF32 && bias.size() == w.n),
        "matmul: bias has the wrong shape");

  const GemmCall call{.x = x.data,
                      .x_stride = x.row_stride,
                      .panels = w.panels.get(),
                      .panel_bytes = w.panel_bytes,
                      .bias = bias.as<const float>(),
                      .out = out.data,
                      .out_stride = out.row_stride,
                      .out_f32 = out.dtype == DType::kF32,
                      .n = w.n,
                      .k = w.k};
  if (onednn_ && w.dtype == DType::kBF16 && m >= onednn_->min_rows()) return onednn_->run(call, m);

  const int64_t panels = div_up(w.n, kernels_.panel_columns);
  const int64_t tiles = div_up(m, kernels_.tile_rows);
  const int64_t row_parts = div_up(tiles, kGemmTaskRows / kernels_.tile_rows);
  const auto size = static_cast<int64_t>(dtype_size(w.dtype));
  const bool parallel = threads_ > 1 && w.n * w.k * (4 * size + m) > kParallelWork;
  // One part of the rows: two runs of panels for each thread. Else smaller tasks, the ones that
  // share panels together.
  int64_t column_parts = parallel ? 2 * threads_ : 1;
  if (row_parts > 1)
    column_parts = std::max(div_up(panels * kernels_.panel_columns, kGemmGroupColumns),
                            div_up(column_parts, row_parts));
  column_parts = std::min(column_parts, panels);
  const int64_t tasks = row_parts * column_parts;
  const auto run = [&](int64_t task, int thread) {
    const int64_t r = task % row_parts, c = task / row_parts;
    const auto row = [&](int64_t part) {
      return std::min(m, tiles * part / row_parts * kernels_.tile_rows);
    };
    kernels_.task[index_of(w.dtype)](
        call, row(r), row(r + 1), panels * c / column_parts, panels * (c + 1) / column_parts,
        static_cast<float*>(scratch_.get()) + thread * kGemmScratchFloats);
  };
  if (parallel) parallel_for(tasks, run);
  else
    for (int64_t i = 0; i < tasks; ++i) run(i, 0);
}

}  // namespace nanovllm::cpu
