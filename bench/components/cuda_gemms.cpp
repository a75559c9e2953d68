#include "cuda_gemms.h"

#include <array>
#include <map>
#include <string>
#include <utility>

#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"

namespace nanovllm {

namespace {

class GemmBench {
 public:
  GemmBench(CudaMeasure& on, bool e4m3) : on_(on), e4m3_(e4m3) {}

  enum class Around { kNorm, kAdd, kNormSwiglu };

  /// A GEMM with the row operations around it: with the kernels that the backend chooses, and with
  /// cuBLASLt and separate row operations; with `all_configs` also in each tile configuration,
  /// fastest first.
  void gemm(const char* name, int64_t num_tokens, int64_t n, int64_t k, Around around,
            bool all_configs) {
    on_.buffers_.clear();
    // Several copies of the weight, so that the L2 cache does not have the one that is read next.
    const int64_t bytes = n * k * (e4m3_ ? 1 : 2), copies = 1 + 200'000'000 / bytes;
    const std::vector<uint16_t> host = on_.random_values(n * k);
    const Tensor matrix(const_cast<uint16_t*>(host.data()), DType::kBF16, n, k);
    const WeightRows parts[] = {e4m3_ ? e4m3_weight(n, k) : WeightRows(matrix)};
    const Tensor x = on_.random(num_tokens, k), hidden = on_.random(num_tokens, k),
                 out = on_.random(num_tokens, n), wide = on_.random(num_tokens, n);
    const Tensor act(out.data, DType::kBF16, num_tokens, n / 2);
    Residual residual(x, hidden), sum(out, wide);
    const Norm norm = {{on_.random(1, 2 * k).data, DType::kF32, k}, 1e-6f};
    std::vector<WeightPtr> weights;  // all backends on the GPU can use them
    for (int64_t i = 0; i < copies; ++i) weights.push_back(on_.gpu_->pack(parts, DType::kBF16));
    const auto timed_on = [&](Backend& gpu) {
      const int64_t key = ++on_.num_graphs_;
      const auto run = [&] {
        for (const WeightPtr& w : weights)
          if (around == Around::kNorm) gpu.norm_matmul(out, residual, norm, *w);
          else if (around == Around::kAdd) gpu.add_matmul(sum, x, *w);
          else gpu.norm_swiglu(act, residual, norm, *w, wide);
      };
      const auto replay = [&] { gpu.replay(key, run); };
      const auto tune = [&](const WarmupStep& step) {
        if (step.num_tokens == num_tokens) run();
      };
      gpu.prepare({.max_tokens = num_tokens, .graph_sizes = {}, .run = tune}, {});
      replay();
      return on_.timed(20, replay, &gpu) / static_cast<double>(copies);
    };
    const double time = timed_on(*on_.gpu_);
    fmt::print("{} [{}, {}], {} tokens: {:.2f} us, {:.0f}% of read", name, n, k, num_tokens,
               time * 1e6, 100 * static_cast<double>(bytes) / time / on_.read_);
    if (!e4m3_) fmt::print("; cuBLASLt and rows {:.2f} us", timed_on(*on_.portable_) * 1e6);
    fmt::print("\n");
    if (!all_configs) return;
    const bool swiglu = around == Around::kNormSwiglu;
    std::vector<std::pair<double, std::string>> times;
    for (int i = 0; i < cuda::kNumTileConfigs; ++i) {
      const cuda::TileConfig config = cuda::tile_config(i);
      const int64_t blocks =
          config.blocks(static_cast<int>(num_tokens), static_cast<int>(swiglu ? n / 2 : n));
      if ((e4m3_ && !multiplies_e4m3(config)) || config.swiglu != swiglu ||
          (config.split > 1 && (swiglu || blocks > 132)) || blocks < 40)
        continue;
      std::unique_ptr<Backend>& gpu = by_config_[i];
      if (!gpu) gpu = make_cuda_backend({.gemm = i});
      times.emplace_back(timed_on(*gpu) * 1e6,
                         fmt::format("{}x{}/{}", config.tokens, config.rows, config.split));
    }
    std::ranges::sort(times);
    for (const auto& [us, config] : times) fmt::print("  {} {:.2f}", config, us);
    fmt::print("\n");
  }

 private:
  static WeightRows e4m3_weight(int64_t n, int64_t k) {
    QuantizedMatrix m = {.format = QuantizedFormat::kE4M3,
                         .num_rows = n,
                         .num_columns = k,
                         .scale_rows = 128,
                         .scale_columns = 128,
                         .quantizes_activations = true};
    m.scales.assign(static_cast<size_t>(m.num_scales()), 0.5f);
    m.values = [](Range rows, Range columns, uint8_t* to) {
      const std::vector<uint16_t> values = CudaMeasure::random_values(rows.count * columns.count);
      std::ranges::transform(values, to, [](uint16_t x) { return f32_to_e4m3(bf16_to_f32(x)); });
    };
    return {n, k, [m] { return m; }};
  }

  CudaMeasure& on_;
  const bool e4m3_;                                    // the weights
  std::map<int, std::unique_ptr<Backend>> by_config_;  // by CudaKernels::gemm
};

}  // namespace

void bench_gemms(CudaMeasure& on, bool all_configs, bool e4m3, std::vector<int64_t> counts) {
  if (counts.empty()) {
    if (all_configs) counts = {32, 64, 96, 128, 192, 256, 512};
    else counts = {32, 64, 128, 256, 16384};
  }
  GemmBench bench(on, e4m3);
  using Around = GemmBench::Around;
  for (const int64_t tokens : counts)
    for (const auto& [hidden, q_size, qkv_size, wide] :
         {std::array<int64_t, 4>{1024, 2048, 4096, 3072}, {4096, 4096, 6144, 12288}}) {
      bench.gemm("qkv", tokens, qkv_size, hidden, Around::kNorm, all_configs);
      bench.gemm("o", tokens, hidden, q_size, Around::kAdd, all_configs);
      bench.gemm("gate_up", tokens, 2 * wide, hidden, Around::kNormSwiglu, all_configs);
      bench.gemm("down", tokens, hidden, wide, Around::kAdd, all_configs);
    }
}

}  // namespace nanovllm
