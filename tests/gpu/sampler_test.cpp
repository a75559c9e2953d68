#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "../ops/sampler_reference.h"
#include "two_backends.h"

namespace nanovllm {
namespace {

class GpuSampler : public TwoBackends {
 protected:
  using Sampling = std::function<void(const Step&)>;
  /// Runs a step with one sequence for each row, and returns the token of each row. `sampling`
  /// computes logits and draws from them; without it, the tokens are drawn from `logits`.
  std::vector<int32_t> draw(Backend& backend, Tensor logits, const std::vector<SampleRow>& rows,
                            std::vector<RowStatus>& status, const Sampling& sampling = nullptr) {
    constexpr int64_t kMostRows = 512;
    Buffer& memory = slots_[&backend];
    if (memory == nullptr) memory = backend.allocate(2 * kMostRows * sizeof(int32_t));
    auto* const ints = static_cast<int32_t*>(memory.get());
    const KvCache kv = {.dtype = DType::kF32,
                        .num_layers = 1,
                        .num_blocks = 1,
                        .block_size = 16,
                        .num_kv_heads = 1,
                        .head_dim = 8,
                        .block_tables = {ints, DType::kI32, kMostRows, 1}};
    Step& step = backend.new_step();
    step.last_tokens = {ints + kMostRows, DType::kI32, kMostRows};
    step.processed_logprobs = processed_logprobs_;
    step.samples = rows;
    for (SampleRow& row : step.samples)
      if (row.num_late_words > 0) row.allowed_mask = {};
    for (int32_t i = 0; i < std::ssize(rows); ++i) {
      step.token_ids.push_back(i % 45);
      step.rows.push_back({.slot = i, .num_tokens = 1, .store = 0});
      step.outputs.push_back({.row = i, .slot = i});
    }
    backend.begin_step(kv);
    if (sampling) sampling(step);
    else backend.sample(logits, step);
    for (size_t i = 0; i < rows.size(); ++i) step.samples[i].allowed_mask = rows[i].allowed_mask;
    backend.finish_sample(logits);
    std::vector<int32_t> tokens(rows.size()), last(rows.size());
    status.resize(rows.size());
    std::vector<Logprob>& logprobs = logprobs_[&backend];
    logprobs.clear();
    backend.fetch_samples(tokens, status, logprobs);
    backend.download(last.data(), step.last_tokens.data, last.size() * sizeof(int32_t));
    EXPECT_EQ(last, tokens) << "the slots' last tokens";
    return tokens;
  }

  /// Compares the log-probabilities of the latest draws on both backends.
  void expect_equal_logprobs() {
    const std::vector<Logprob>&want = logprobs_[cpu.get()], &got = logprobs_[gpu.get()];
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].id, want[i].id) << i;
      ASSERT_EQ(got[i].rank, want[i].rank) << i;
      if (got[i].logprob != want[i].logprob) {  // both may be -infinity
        ASSERT_NEAR(got[i].logprob, want[i].logprob, 1e-5) << i;
      }
    }
  }

  /// The GEMM of the logits. The elements of x are 1 and -1 and those of w have few bits, so the
  /// sums are exact in any order, and both backends have the same logits.
  struct LogitsGemm {
    int64_t num_rows, vocab, k;
    float odd = 0;  // if not 0, the last element of w
  };
  /// Runs steps of one graph on both backends and compares the tokens. `reads_logits`: for each
  /// step, whether its logits are read.
  void expect_equal_tokens(const LogitsGemm& p, const std::vector<bool>& reads_logits) {
    if (skips()) return;
    SCOPED_TRACE(fmt::format("{} rows, vocabulary {}, k {}", p.num_rows, p.vocab, p.k));
    Twin x = make({nullptr, DType::kBF16, p.num_rows, p.k});
    Twin w = make({nullptr, DType::kBF16, p.vocab, p.k});
    Twin norm = make({nullptr, DType::kF32, p.k});
    const auto fill = [&](Twin& twin, const std::function<float()>& value) {
      for (int64_t i = 0; i < twin.on_cpu.size(); ++i)
        set(twin.host.data(), twin.on_cpu.dtype, i, value());
    };
    fill(x, [&] { return random() % 2 == 0 ? 1.0f : -1.0f; });
    fill(w, [&] { return (static_cast<float>(random() % 255) - 127) / 256; });
    fill(norm, [] { return 1.0f; });
    if (p.odd != 0) set(w.host.data(), DType::kBF16, p.vocab * p.k - 1, p.odd);
    for (Twin* twin : {&x, &w, &norm})
      gpu->upload(twin->on_gpu.data, twin->host.data(), twin->host.size());
    std::vector<SampleRow> rows(static_cast<size_t>(p.num_rows));
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = {{.temperature = i % 4 == 3 ? 0 : 0.3f * static_cast<float>(i % 7 + 1),
                  .seed = random() * 0x9e3779b97f4a7c15u,
                  .choice = static_cast<uint32_t>(i % 3)}};
    const WeightPtr w_cpu = cpu->pack(w.on_cpu, DType::kBF16);
    const WeightPtr w_gpu = gpu->pack(w.on_cpu, DType::kBF16);
    const Twin hidden = make({nullptr, DType::kBF16, p.num_rows, p.k}, 0);
    const Twin logits = make({nullptr, DType::kF32, p.num_rows, p.vocab}, 0);
    const std::vector<char> unwritten = logits.host;
    const bool is_fused =
        p.num_rows >= 4 && p.num_rows <= 64 && gpu->describe().find("wgmma") != std::string::npos;
    bool is_written = !is_fused;
    ++num_graphs_;
    for (const bool reads : reads_logits) {
      is_written |= reads;
      for (SampleRow& row : rows) ++row.position;
      rows[0].num_logprobs = reads ? 1 : 0;
      std::vector<RowStatus> on_cpu, on_gpu;
      const auto sample = [&](Backend& backend, const Weight& weight, auto side) {
        return [&, side](const Step& step) {
          backend.replay(num_graphs_, [&] {
            Residual residual(x.*side, hidden.*side);
            backend.norm_sample(logits.*side, residual, {norm.*side, 0}, weight, step);
          });
        };
      };
      EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, on_gpu, sample(*gpu, *w_gpu, &Twin::on_gpu)),
                draw(*cpu, logits.on_cpu, rows, on_cpu, sample(*cpu, *w_cpu, &Twin::on_cpu)))
          << "step of position " << rows[0].position;
      EXPECT_EQ(on_gpu, on_cpu);
      EXPECT_EQ(from_gpu(logits.on_gpu) != unwritten, is_written);
    }
  }

  std::map<Backend*, std::vector<Logprob>> logprobs_;  // of the latest draw()
  bool processed_logprobs_ = false;

 private:
  std::map<Backend*, Buffer> slots_;  // they keep their address, because graphs contain it
  int64_t num_graphs_ = 0;
};

TEST_P(GpuSampler, DrawsWhatTheCpuDraws) {
  std::vector<TokenCount> counts = {{3, 2}, {5, 0}, {40, 1}};
  std::vector<TokenBias> biases = {{7, 2.5f}, {3, -1}};
  std::vector<int32_t> masked = {0, 9, 30}, allowed = {2, 3, 5, 7, 11, 13, 40};
  std::vector<MaskedAfter> masked_after;
  for (int32_t id = 0; id < 40; ++id) masked_after.push_back({id * 7 % 45, id});
  for (const int64_t vocab : {41, 512, 2049, 8192, 50257, 151936}) {
    std::vector<int32_t> mask(static_cast<size_t>((vocab + 31) / 32));
    for (int32_t& word : mask) word = static_cast<int32_t>(random());
    std::vector<SampleRow> rows;
    for (const float temperature : {0.0f, 0.3f, 1.0f, 2.0f})
      for (const int32_t top_k : {0, 1, 5, 50, 3000})
        for (const float top_p : {1.0f, 0.9f, 0.2f, 0.001f})
          for (const float min_p : {0.0f, 0.05f}) {
            SampleRow row = {{.temperature = temperature,
                              .top_p = top_p,
                              .min_p = min_p,
                              .top_k = top_k,
                              .seed = random() * 0x9e3779b97f4a7c15u,
                              .position = static_cast<uint32_t>(random() % 1000),
                              .choice = static_cast<uint32_t>(random() % 3)}};
            if (rows.size() % 3 == 0) {
              row.counts = counts;
              row.presence_penalty = 0.5f;
              row.frequency_penalty = 0.25f;
              row.repetition_penalty = 1.3f;
            }
            if (rows.size() % 4 == 0) row.biases = biases;
            if (rows.size() % 5 == 0) row.masked_ids = masked;
            if (rows.size() % 7 == 0) row.allowed_ids = allowed;
            if (rows.size() % 7 == 3) row.allowed_mask = mask;
            if (rows.size() % 6 == 0) row.last_token = kTokenInFlight;
            if (rows.size() % 12 == 0) row.masked_after = masked_after;
            row.num_logprobs = std::array{0, 1, 6, 0, 21}[rows.size() % 5];
            rows.push_back(row);
          }
    const Twin logits = make({nullptr, DType::kF32, static_cast<int64_t>(rows.size()), vocab}, 3);
    std::vector<RowStatus> on_gpu, on_cpu;
    EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, on_gpu), draw(*cpu, logits.on_cpu, rows, on_cpu))
        << vocab;
    EXPECT_EQ(on_gpu, on_cpu);
    expect_equal_logprobs();
    EXPECT_EQ(from_gpu(logits.on_gpu), logits.host) << "the sampler must not change the logits";
    // Masks that come after the forward pass was begun (order.late).
    for (SampleRow& row : rows)
      if (!row.allowed_mask.empty()) row.num_late_words = static_cast<int32_t>(mask.size());
    std::vector<RowStatus> late;
    EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, late), draw(*cpu, logits.on_cpu, rows, on_cpu));
    EXPECT_EQ(late, on_gpu);
    EXPECT_EQ(on_cpu, on_gpu);
    expect_equal_logprobs();
  }
}

TEST_P(GpuSampler, ManyPlainRowsAgree) {
  for (const int64_t num_rows : {1, 2, 17, 256}) {
    std::vector<SampleRow> rows(static_cast<size_t>(num_rows));
    for (SampleRow& row : rows)
      row = {{.temperature = 0.6f, .seed = random(), .position = static_cast<uint32_t>(random())}};
    const Twin logits = make({nullptr, DType::kF32, num_rows, 32000}, 2);
    std::vector<RowStatus> status;
    EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, status), draw(*cpu, logits.on_cpu, rows, status));
  }
}

TEST_P(GpuSampler, SamplerInTheEpilogue) {
  for (const LogitsGemm& p : {LogitsGemm{5, 200, 72},
                              {4, 8, 64},
                              {6, 512, 256, INFINITY},
                              {7, 4096, 200},
                              {16, 1000, 64, std::nanf("")},
                              {17, 151936, 64},
                              {33, 32000, 512},
                              {64, 151936, 128},
                              {64, 50280, 1024}})
    expect_equal_tokens(p, {false, false, false});  // eager, captured, replayed
}

// If the logits are read, or if there are too few or too many rows, a separate sampler runs.
TEST_P(GpuSampler, DrawsWhetherLogitsAreReadOrNot) {
  for (const LogitsGemm& p : {LogitsGemm{20, 5000, 128}, {3, 200, 64}, {65, 512, 64}})
    expect_equal_tokens(p, {false, false, false, true, true, true, false, true});
}

// The values of all tokens are nearly the same, or few differ from the others: filters keep very
// many or very few, and boundaries run through equal values.
TEST_P(GpuSampler, FiltersOfFlatPeakedAndEqualLogits) {
  for (const int64_t vocab : {1000, 151936}) {
    const std::vector<std::function<float(int64_t)>> kinds = {
        [&](int64_t) { return 0.1f * std::sin(static_cast<float>(random() % 100000)); },
        [&](int64_t id) { return id % 977 == 5 ? 20.0f : static_cast<float>(random() % 8) - 4; },
        [](int64_t id) { return id < 600 ? 3.0f + static_cast<float>(id % 3) : 0.0f; },
        [](int64_t) { return 2.5f; }};
    std::vector<SampleRow> rows;
    std::vector<float> values;
    for (const auto& kind : kinds)
      for (const auto& [top_k, top_p, min_p] : {std::tuple{0, 0.9f, 0.0f},
                                                {0, 0.01f, 0.0f},
                                                {0, 0.999f, 0.1f},
                                                {20, 0.95f, 0.0f},
                                                {600, 1.0f, 0.0f},
                                                {900, 0.5f, 0.0f},
                                                {700, 1.0f, 0.5f},
                                                {0, 1.0f, 0.9f}}) {
        rows.push_back({{.temperature = 0.8f,
                         .top_p = top_p,
                         .min_p = min_p,
                         .top_k = top_k,
                         .seed = random()}});
        rows.back().num_logprobs = static_cast<int32_t>(rows.size() % 3) * 9;
        for (int64_t id = 0; id < vocab; ++id) values.push_back(kind(id));
      }
    Twin logits = make({nullptr, DType::kF32, static_cast<int64_t>(rows.size()), vocab}, 1);
    for (size_t i = 0; i < values.size(); ++i)
      set(logits.host.data(), DType::kF32, static_cast<int64_t>(i), values[i]);
    gpu->upload(logits.on_gpu.data, logits.host.data(), logits.host.size());
    std::vector<RowStatus> status;
    EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, status), draw(*cpu, logits.on_cpu, rows, status));
    expect_equal_logprobs();
  }
}

TEST_P(GpuSampler, TiesGoToTheLowerId) {
  Twin logits = make({nullptr, DType::kF32, 4, 1000}, 1);
  for (int64_t i = 0; i < 4000; ++i) set(logits.host.data(), DType::kF32, i, i % 7 == 0 ? 2 : 1);
  gpu->upload(logits.on_gpu.data, logits.host.data(), logits.host.size());
  const std::vector<SampleRow> rows = {{{.temperature = 0}},
                                       {{.top_k = 3, .seed = 5}},
                                       {{.top_p = 0.1f, .seed = 6}},
                                       {{.top_p = 0.5f, .top_k = 500, .seed = 7}}};
  std::vector<RowStatus> status;
  const std::vector<int32_t> tokens = draw(*gpu, logits.on_gpu, rows, status);
  EXPECT_EQ(tokens, draw(*cpu, logits.on_cpu, rows, status));
  EXPECT_EQ(tokens[0], 0);
  EXPECT_LE(tokens[1], 14);
}

TEST_P(GpuSampler, RowsThatAreNotFiniteDoNotAffectOthers) {
  const int64_t vocab = 5000;
  Twin logits = make({nullptr, DType::kF32, 8, vocab}, 1);
  const auto put = [&](int64_t row, int64_t id, float x) {
    set(logits.host.data(), DType::kF32, row * vocab + id, x);
  };
  put(1, 4999, std::nanf(""));
  put(3, 0, INFINITY);
  for (int64_t id = 0; id < vocab; ++id) put(5, id, -INFINITY);
  put(6, 17, -INFINITY);
  gpu->upload(logits.on_gpu.data, logits.host.data(), logits.host.size());
  std::vector<SampleRow> rows(8);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = {{.temperature = i % 2 == 0 ? 1.0f : 0.0f, .top_k = i == 1 ? 4 : 0, .seed = i}};
  std::vector<RowStatus> on_gpu, on_cpu;
  EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, on_gpu), draw(*cpu, logits.on_cpu, rows, on_cpu));
  EXPECT_EQ(on_gpu, on_cpu);
  EXPECT_EQ(on_gpu[1], RowStatus::kNotFinite);
  EXPECT_EQ(on_gpu[0], RowStatus::kOk);
}

TEST_P(GpuSampler, LogprobsOfTargetsAreTheCpus) {
  for (const int64_t vocab : {300, 151936}) {
    const Twin logits = make({nullptr, DType::kF32, 9, vocab}, 3);
    std::vector<int32_t> targets(9);
    for (int32_t& id : targets) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
    for (const int64_t k : {0, 1, 20, 250}) {
      for (Backend* backend : {cpu.get(), gpu.get()}) {
        logprobs_[backend].clear();
        backend->token_logprobs(backend == cpu.get() ? logits.on_cpu : logits.on_gpu, targets, k,
                                logprobs_[backend]);
      }
      expect_equal_logprobs();
    }
  }
}

TEST_P(GpuSampler, ProcessedLogprobsAreTheCpus) {
  processed_logprobs_ = true;
  const std::vector<TokenCount> counts = {{3, 2}, {40, 0}};
  const std::vector<TokenBias> biases = {{7, 4.0f}, {9, -3.0f}};
  const std::vector<int32_t> masked = {1, 2}, allowed = {3, 4, 5, 7, 11, 100, 200, 299};
  std::vector<SampleRow> rows = {
      {{.temperature = 0.5f}},
      {{.temperature = 0}},
      {{.temperature = 1.5f, .top_k = 12}},
      {{.temperature = 0.8f, .top_p = 0.7f}},
      {{.temperature = 0.9f, .top_p = 0.8f, .min_p = 0.01f, .top_k = 30}},
      {{.temperature = 1, .presence_penalty = 0.5f, .repetition_penalty = 1.3f}, counts, biases},
      {{.temperature = 0, .frequency_penalty = 1}, counts, {}, masked},
      {{.temperature = 2, .top_k = 5}, {}, biases, {}, allowed}};
  while (rows.size() < 70) rows.push_back(rows[rows.size() % 8]);  // more than one launch
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].num_logprobs = 6;
    if (i % 3 == 0) rows[i].last_token = kTokenInFlight;
  }
  for (const int64_t vocab : {300, 151936}) {
    const Twin logits = make({nullptr, DType::kF32, std::ssize(rows), vocab}, 3);
    std::vector<RowStatus> status;
    EXPECT_EQ(draw(*gpu, logits.on_gpu, rows, status), draw(*cpu, logits.on_cpu, rows, status));
    expect_equal_logprobs();
  }
}

NANOVLLM_BOTH_KERNELS(GpuSampler);

}  // namespace
}  // namespace nanovllm
