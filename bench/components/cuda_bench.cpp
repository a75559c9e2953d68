// Measures single kernels of the CUDA backend: us, TB/s or TFLOP/s, and the share of the peak that
// the GPU reaches in the same run.
//   cuda_bench [decode | prefill | gemms | rows | sampler | tiles]
//       `tiles` measures the GEMMs in every tile configuration
//   cuda_bench gemms | tiles e4m3 [tokens...]
//       the same with weights in E4M3, for which activations are quantized
//   cuda_bench all_reduce N
//       checks and times all-reduces over N GPUs inside a graph, with one process for each GPU; the
//       exit status is 77 if there are fewer GPUs

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_gemms.h"
#include "cuda_measure.h"
#include "nanovllm/ops/backend.h"
#include "sums_over_gpus.h"

namespace {

using namespace nanovllm;

class Bench : public CudaMeasure {
 public:
  /// One new token for each of `num_seqs` sequences of `context` keys. With `roped` the norm, the
  /// rotation and the store of the newest key are included.
  void decode(int64_t num_seqs, int64_t context, int64_t heads, int64_t kv_heads, bool roped,
              bool ragged = false, DType kv_dtype = DType::kBF16) {
    buffers_.clear();
    const std::vector<int64_t> lengths = contexts(num_seqs, context, ragged);
    const int64_t num_keys = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const auto key_bytes = static_cast<int64_t>(kv_key_bytes(kv_dtype, kHeadDim));
    const double bytes = static_cast<double>(num_keys * 2 * kv_heads * key_bytes);
    // The calls use the layers in turn, so that the L2 cache has no keys of the next call.
    const auto layers = static_cast<int64_t>(std::ceil(1e9 / bytes));
    const int64_t longest = *std::ranges::max_element(lengths);
    KvCache kv = cache(num_seqs, longest, layers, kv_heads, kv_dtype);
    begin(1, lengths, kv);
    const Tensor qkv = random(num_seqs, (heads + 2 * kv_heads) * kHeadDim);
    const Tensor out = random(num_seqs, heads * kHeadDim);
    const Tensor angles = random(longest, kHeadDim);
    const Tensor cos(angles.data, DType::kF32, longest, kHeadDim / 2);
    const Tensor norm = random(1, 2 * kHeadDim);
    const int64_t calls = std::max<int64_t>(layers, 20);
    const auto enqueue = [&] {
      for (int64_t i = 0; i < calls; ++i) {
        const AttentionArgs args = {
            .out = out, .qkv = qkv, .num_heads = heads, .scale = 0.09f, .layer = i % layers};
        if (roped)
          gpu_->rope_attention({.qkv = qkv,
                                .q_norm = {norm.data, DType::kF32, kHeadDim},
                                .k_norm = {norm.data, DType::kF32, kHeadDim},
                                .cos = cos,
                                .sin = cos,
                                .num_heads = heads,
                                .eps = 1e-6f,
                                .layer = i % layers},
                               args, kv, *step_);
        else gpu_->attention(args, kv, *step_);
      }
    };
    const int64_t key = ++num_graphs_;
    gpu_->replay(key, enqueue);
    gpu_->replay(key, enqueue);
    const double time = timed(10, [&] { gpu_->replay(key, enqueue); }) / static_cast<double>(calls);
    fmt::print("{} attention B{} L{}{}{}, {}/{} heads: {:.1f} us, {:.2f} TB/s, {:.0f}% of read\n",
               roped ? "rope and decode" : "decode", num_seqs, context,
               ragged ? " in the mean" : "", kv_dtype == DType::kE4M3 ? ", FP8" : "", heads,
               kv_heads, time * 1e6, bytes / time / 1e12, 100 * bytes / time / read_);
  }

  /// Prompts of `length` tokens, of which the last `num_new` are not in the cache.
  void prefill(int64_t num_seqs, int64_t length, int64_t num_new, int64_t heads, int64_t kv_heads,
               DType kv_dtype = DType::kBF16) {
    buffers_.clear();
    KvCache kv = cache(num_seqs, length, 3, kv_heads, kv_dtype);
    begin(num_new, contexts(num_seqs, length, false), kv);
    const Tensor qkv = random(num_seqs * num_new, (heads + 2 * kv_heads) * kHeadDim);
    const Tensor out = random(num_seqs * num_new, heads * kHeadDim);
    const double flops =
        2.0 * static_cast<double>(num_seqs * num_new * (2 * length - num_new) * heads * kHeadDim);
    int64_t layer = 0;
    const double time = timed(flops > 1e13 ? 4 : 30, [&] {
      gpu_->attention(
          {.out = out, .qkv = qkv, .num_heads = heads, .scale = 0.09f, .layer = layer++ % 3}, kv,
          *step_);
    });
    fmt::print(
        "prefill attention {}x{}{}, {} new, {}/{} heads: {:.1f} us, {:.0f} TFLOP/s, {:.0f}% of "
        "the matrix rate\n",
        num_seqs, length, kv_dtype == DType::kE4M3 ? ", FP8" : "", num_new, heads, kv_heads,
        time * 1e6, flops / time / 1e12, 100 * flops / time / flops_);
  }

  void rows(int64_t num_tokens) {
    buffers_.clear();
    const int64_t hidden = 1024, wide = 3072, heads = 16, kv_heads = 8;
    const Tensor x = random(num_tokens, hidden), y = random(num_tokens, hidden);
    const Tensor gate_up = random(num_tokens, 2 * wide), act = random(num_tokens, wide);
    const Tensor norm = random(1, 2 * hidden);
    const Tensor weight(norm.data, DType::kF32, hidden);
    print("rms_norm", num_tokens, 2 * 2 * num_tokens * hidden, timed(50, [&] {
            gpu_->rms_norm(y, x, {weight, 1e-6f});
          }));
    print("silu_mul", num_tokens, 2 * 3 * num_tokens * wide,
          timed(50, [&] { gpu_->silu_mul(act, gate_up); }));
    KvCache kv = cache(std::max<int64_t>(num_tokens / 1024, 1), std::min<int64_t>(num_tokens, 1024),
                       1, kv_heads);
    const int64_t length = std::min<int64_t>(num_tokens, 1024);
    begin(length, contexts(std::max<int64_t>(num_tokens / 1024, 1), length, false), kv);
    const Tensor qkv = random(num_tokens, (heads + 2 * kv_heads) * kHeadDim);
    const Tensor angles = random(1024, kHeadDim);
    const Tensor cos(angles.data, DType::kF32, 1024, kHeadDim / 2);
    print("rope_and_store", num_tokens, 2 * 2 * qkv.size(), timed(50, [&] {
            gpu_->rope_and_store({.qkv = qkv,
                                  .q_norm = {angles.data, DType::kF32, kHeadDim},
                                  .k_norm = {angles.data, DType::kF32, kHeadDim},
                                  .cos = cos,
                                  .sin = cos,
                                  .num_heads = heads,
                                  .eps = 1e-6f,
                                  .layer = 0},
                                 kv, *step_);
          }));
  }

  void sampler(int64_t num_rows, const SampleRow& row, const std::string& name) {
    buffers_.clear();
    const int64_t vocab = 151936;
    const Tensor logits(random(num_rows, 2 * vocab).data, DType::kF32, num_rows, vocab);
    samples_.assign(static_cast<size_t>(num_rows), row);
    KvCache kv = cache(num_rows, 64, 1, 1);
    begin(1, contexts(num_rows, 64, false), kv);
    std::vector<int32_t> ids(static_cast<size_t>(num_rows));
    std::vector<RowStatus> status(ids.size());
    std::vector<Logprob> logprobs;
    const double time = timed(20, [&] {  // the same step repeatedly; nothing uses its tokens
      gpu_->sample(logits, *step_);
      gpu_->finish_sample(logits);
      logprobs.clear();
      gpu_->fetch_samples(ids, status, logprobs);
    });
    samples_.clear();
    print("sampler, " + name, num_rows, 4 * num_rows * vocab, time);
  }

  /// A norm, the GEMM of the logits and the sampler; first with logits that are read afterwards,
  /// then with logits that need not be stored.
  void logits_and_sampler(int64_t num_rows) {
    buffers_.clear();
    const int64_t vocab = 151936, k = 1024;
    std::vector<uint16_t> host = random_values(vocab * k);
    const Tensor part(host.data(), DType::kBF16, vocab, k);
    const WeightPtr w = gpu_->pack(part, DType::kBF16);
    const Tensor weight = random(1, 2 * k);
    Residual residual(random(num_rows, k), random(num_rows, k));
    const Norm norm = {{weight.data, DType::kF32, k}, 1e-6f};
    const Tensor logits(random(num_rows, 2 * vocab).data, DType::kF32, num_rows, vocab);
    for (const bool reads : {true, false}) {
      samples_.assign(static_cast<size_t>(num_rows), {{.temperature = 0.6f, .seed = 1}});
      samples_[0].num_logprobs = reads ? 1 : 0;
      KvCache kv = cache(num_rows, 64, 1, 1);
      begin(1, contexts(num_rows, 64, false), kv);
      print(reads ? "logits, then sampler" : "logits and sampler", num_rows, 2 * vocab * k,
            timed(20, [&] { gpu_->norm_sample(logits, residual, norm, *w, *step_); }));
    }
    samples_.clear();
  }

 private:
  static constexpr int64_t kHeadDim = 128, kBlockSize = 64;

  KvCache cache(int64_t num_seqs, int64_t context, int64_t layers, int64_t kv_heads,
                DType dtype = DType::kBF16) {
    const int64_t blocks = num_seqs * ((context + kBlockSize - 1) / kBlockSize);
    KvCache kv = {.dtype = dtype,
                  .num_layers = layers,
                  .num_blocks = blocks,
                  .block_size = kBlockSize,
                  .num_kv_heads = kv_heads,
                  .head_dim = kHeadDim};
    const auto bytes = static_cast<int64_t>(kv.block_bytes()) * blocks;
    if (dtype == DType::kBF16) {
      kv.data = random(1, bytes / 2).data;
      return kv;
    }
    // Bytes that are small positive numbers both as e4m3 and, four of them, as a scale.
    std::vector<uint8_t> host(static_cast<size_t>(bytes));
    std::mt19937 generator(5);
    for (size_t i = 0; i < host.size(); ++i)
      host[i] = i < 1 << 20 ? static_cast<uint8_t>(0x39 + generator() % 3) : host[i - (1 << 20)];
    buffers_.push_back(gpu_->allocate(host.size()));
    kv.data = buffers_.back().get();
    gpu_->upload(kv.data, host.data(), host.size());
    return kv;
  }
  /// Context lengths: all `mean`, or from a fifth of it to nine fifths in a random order.
  static std::vector<int64_t> contexts(int64_t num_seqs, int64_t mean, bool ragged) {
    std::vector<int64_t> lengths(static_cast<size_t>(num_seqs), mean);
    if (!ragged) return lengths;
    for (int64_t s = 0; s < num_seqs; ++s)
      lengths[static_cast<size_t>(s)] =
          mean / 5 + mean * 8 * s / (5 * std::max<int64_t>(num_seqs - 1, 1));
    std::shuffle(lengths.begin(), lengths.end(), std::mt19937(4));
    return lengths;
  }
  /// Begins a step of sequences whose blocks are scattered over the cache, which gets block tables.
  /// The last `num_new` tokens of each sequence are new.
  void begin(int64_t num_new, const std::vector<int64_t>& contexts, KvCache& kv) {
    const auto num_seqs = static_cast<int64_t>(contexts.size());
    const int64_t seq_blocks = kv.num_blocks / num_seqs;
    tables_ = gpu_->allocate(static_cast<size_t>(num_seqs * (seq_blocks + 1)) * 4);
    auto* const ints = static_cast<int32_t*>(tables_.get());
    std::vector<int32_t> order(static_cast<size_t>(kv.num_blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    Step& step = gpu_->new_step();
    step.last_tokens = {ints + num_seqs * seq_blocks, DType::kI32, num_seqs};
    for (int64_t s = 0; s < num_seqs; ++s) {
      const auto slot = static_cast<int32_t>(s);
      for (int64_t i = 0; i < seq_blocks; ++i)
        step.block_updates.push_back(
            {slot, static_cast<int32_t>(i), order[static_cast<size_t>(s * seq_blocks + i)]});
      step.rows.push_back(
          {.slot = slot,
           .start = static_cast<int32_t>(contexts[static_cast<size_t>(s)] - num_new),
           .num_tokens = static_cast<int32_t>(num_new)});
      step.token_ids.resize(step.token_ids.size() + static_cast<size_t>(num_new));
    }
    step.samples = samples_;
    for (int32_t i = 0; i < std::ssize(samples_); ++i)
      step.outputs.push_back({.row = i, .slot = i});
    kv.block_tables = {ints, DType::kI32, num_seqs, seq_blocks};
    gpu_->begin_step(kv);
    step_ = &step;
  }

  Buffer tables_;
  std::vector<SampleRow> samples_;
  const Step* step_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "all_reduce") return sums_over_gpus(argc > 2 ? std::stoi(argv[2]) : 2);
  Bench bench;
  bench.peaks();
  if (what.empty() || what == "decode") {
    for (const auto& [num_seqs, context] : {std::pair{256, 800},
                                            {64, 2048},
                                            {8, 8192},
                                            {1, 8192},
                                            {256, 2048},
                                            {1, 640},
                                            {8, 640},
                                            {64, 640},
                                            {256, 640}})
      for (const bool roped : {false, true}) bench.decode(num_seqs, context, 16, 8, roped);
    for (const auto& [num_seqs, context] : {std::pair{64, 520}, {256, 264}, {256, 640}})
      for (const bool ragged : {false, true}) bench.decode(num_seqs, context, 32, 8, false, ragged);
  }
  if (what.empty() || what == "fp8")
    for (const auto& [num_seqs, context, heads] :
         {std::array{256, 2048, 16}, {256, 640, 16}, {64, 2048, 32}, {8, 8192, 16}, {1, 640, 16}})
      for (const DType dtype : {DType::kBF16, DType::kE4M3})
        for (const bool roped : {false, true})
          bench.decode(num_seqs, context, heads, 8, roped, /*ragged=*/false, dtype);
  if (what.empty() || what == "fp8")
    for (const auto& [num_seqs, length] : {std::pair{16, 1024}, {1, 16384}})
      for (const DType dtype : {DType::kBF16, DType::kE4M3})
        bench.prefill(num_seqs, length, length, 16, 8, dtype);
  if (what.empty() || what == "prefill") {
    for (const auto& [num_seqs, length] : {std::pair{16, 1024}, {4, 4096}, {1, 16384}})
      bench.prefill(num_seqs, length, length, 16, 8);
    for (const auto& [length, num_new] : {std::pair{4096, 200},
                                          {16384, 64},
                                          {16384, 200},
                                          {32768, 1024},
                                          {131072, 64},
                                          {131072, 16384}})
      bench.prefill(1, length, num_new, 32, 8);
  }
  if (what.empty() || what == "gemms" || what == "tiles") {
    const bool all = what == "tiles";
    std::vector<int64_t> counts;
    for (int i = 3; i < argc; ++i) counts.push_back(std::stoi(argv[i]));
    bench_gemms(bench, all, argc > 2 && std::string(argv[2]) == "e4m3", counts);
  }
  if (what.empty() || what == "rows")
    for (const int64_t tokens : {1, 64, 256, 16384}) bench.rows(tokens);
  if (what.empty() || what == "sampler")
    for (const int64_t rows : {1, 64, 256}) {
      if (rows == 64) bench.logits_and_sampler(rows);
      bench.sampler(rows, {{.temperature = 0}}, "greedy");
      bench.sampler(rows, {{.temperature = 0.6f, .seed = 1}}, "temperature");
      const SamplingScalars warm = {.temperature = 0.6f, .seed = 1};
      const auto with = [&](auto change) {
        SampleRow row{warm};
        change(row);
        return row;
      };
      bench.sampler(rows, with([](SampleRow& r) { r.min_p = 0.05f; }), "min_p 0.05");
      bench.sampler(rows, with([](SampleRow& r) { r.top_p = 0.9f; }), "top_p 0.9");
      bench.sampler(rows, with([](SampleRow& r) { r.top_p = 0.95f, r.top_k = 20; }),
                    "top_k 20, top_p 0.95");
      bench.sampler(rows, with([](SampleRow& r) { r.num_logprobs = 1; }), "logprobs 0");
      bench.sampler(rows, with([](SampleRow& r) { r.num_logprobs = 6; }), "logprobs 5");
      const std::vector<TokenBias> biases = {{7, 1.0f}};
      bench.sampler(rows, with([&](SampleRow& r) { r.biases = biases; }), "one logit_bias");
    }
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 2;
}
