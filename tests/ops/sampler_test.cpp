#include "nanovllm/ops/cpu/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "matrix.h"
#include "nanovllm/base/json.h"
#include "nanovllm/ops/cpu/machine/parallel.h"
#include "sampler_reference.h"

namespace nanovllm::cpu {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<RowStatus> status;
};

/// Draws a token from each row of logits [rows, vocab], each with its own parameters.
Drawn draw(std::vector<float> logits, const std::vector<SampleRow>& rows, Isa isa = best_isa()) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  Drawn drawn{std::vector<int32_t>(rows.size(), -1), std::vector<RowStatus>(rows.size())};
  sample(
      Tensor(logits.data(), DType::kF32, num_rows, static_cast<int64_t>(logits.size()) / num_rows),
      rows, drawn.tokens, drawn.status, isa);
  return drawn;
}

/// `count` draws from one distribution, at positions 0, 1, ...
std::vector<int32_t> draws(const std::vector<float>& logits, SampleRow row, uint32_t count) {
  std::vector<int32_t> tokens;
  constexpr uint32_t kAtOnce = 64;
  std::vector<float> repeated;
  for (uint32_t i = 0; i < kAtOnce; ++i)
    repeated.insert(repeated.end(), logits.begin(), logits.end());
  for (uint32_t at = 0; at < count; at += kAtOnce) {
    std::vector<SampleRow> rows(kAtOnce, row);
    for (uint32_t i = 0; i < kAtOnce; ++i) rows[i].position = at + i;
    const Drawn drawn = draw(repeated, rows);
    EXPECT_THAT(drawn.status, Each(RowStatus::kOk));
    tokens.insert(tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
  }
  return tokens;
}

class SamplerGrid : public testing::TestWithParam<SampleCase> {};

TEST_P(SamplerGrid, DrawsTheDefinitionsTokenOnEveryInstructionSet) {
  int compared = 0, skipped = 0;
  for_each_sample_row(GetParam(), [&](const std::vector<float>& logits, const SampleRow& row) {
    const Reference want = reference(logits, row);
    if (want.top_p_margin < 1e-6) {  // the result depends on rounding
      ++skipped;
      return;
    }
    for (const Isa isa : isas()) {
      const Drawn drawn = draw(logits, {row}, isa);
      ASSERT_EQ(drawn.status[0], RowStatus::kOk);
      ASSERT_EQ(drawn.tokens[0], want.token)
          << isa_name(isa) << " temperature " << row.temperature << " top_k " << row.top_k
          << " top_p " << row.top_p << " min_p " << row.min_p << ", " << want.kept.size()
          << " kept";
      ++compared;
    }
  });
  EXPECT_GT(compared, 50);
  EXPECT_LT(skipped, compared / 10 + 10);
}

INSTANTIATE_TEST_SUITE_P(Rows, SamplerGrid, testing::ValuesIn(kSampleCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The token of row i depends only on row i.
TEST(Sampler, RowsDoNotDependOnOthersOrThreads) {
  constexpr int64_t kVocab = 3000;
  constexpr int kRows = 40;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  for (int r = 0; r < kRows; ++r) {
    const auto row = random_logits(kVocab, 2, static_cast<uint32_t>(r));
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back({{.temperature = 0.2f + 0.1f * static_cast<float>(r % 8),
                     .top_p = r % 3 == 0 ? 0.9f : 1.0f,
                     .top_k = r % 4 == 0 ? 30 : 0,
                     .seed = static_cast<uint64_t>(r),
                     .position = 17}});
  }
  const int threads = cpu::num_threads();
  cpu::set_num_threads(1);
  const Drawn want = draw(logits, rows);
  for (const int n : {2, 3, 8}) {
    cpu::set_num_threads(n);
    EXPECT_EQ(draw(logits, rows).tokens, want.tokens);
  }
  cpu::set_num_threads(threads);
  for (int r = 0; r < kRows; ++r)
    EXPECT_EQ(
        draw({logits.begin() + r * kVocab, logits.begin() + (r + 1) * kVocab}, {rows[r]}).tokens[0],
        want.tokens[r]);
}

TEST(Sampler, SeedPositionAndChoiceAllMatter) {
  const std::vector<float> flat(5000, 0.0f);
  const SampleRow base = {{.seed = 5, .position = 9, .choice = 2}};
  const int32_t token = draw(flat, {base}).tokens[0];
  SampleRow row = base;
  row.seed = 6;
  EXPECT_NE(draw(flat, {row}).tokens[0], token);
  row.seed = 5 | uint64_t{1} << 32;
  EXPECT_NE(draw(flat, {row}).tokens[0], token);
  row = base;
  row.position = 10;
  EXPECT_NE(draw(flat, {row}).tokens[0], token);
  row = base;
  row.choice = 3;
  EXPECT_NE(draw(flat, {row}).tokens[0], token);
}

TEST(Sampler, AMaskOfAllowedTokensDrawsWhatTheirListDraws) {
  for (const int32_t vocab : {31, 32, 33, 1000, 5001}) {
    const std::vector<float> logits = random_logits(vocab, 2, 1);
    std::vector<int32_t> allowed, mask(static_cast<size_t>((vocab + 31) / 32));
    for (int32_t id = 0; id < vocab; id += 1 + id % 3) {
      allowed.push_back(id);
      mask[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(1U << (id % 32));
    }
    for (const float temperature : {0.0f, 1.0f})
      for (uint32_t position = 0; position < 50; ++position) {
        SampleRow listed = {{.temperature = temperature, .seed = 3, .position = position}};
        SampleRow masked = listed;
        listed.allowed_ids = allowed;
        masked.allowed_mask = mask;
        const int32_t token = draw(logits, {masked}).tokens[0];
        ASSERT_EQ(token, draw(logits, {listed}).tokens[0]) << vocab << " " << position;
        ASSERT_TRUE(std::ranges::binary_search(allowed, token));
      }
  }
}

TEST(Sampler, RowsThatAreNotFiniteAreMarkedAndDoNotAffectOthers) {
  constexpr int64_t kVocab = 100;
  for (const Isa isa : isas())
    for (const int64_t at : {0, 63, 64, 99}) {
      std::vector<float> logits(kVocab * 4, 1.0f);
      logits[at] = kNan;
      logits[kVocab + at] = kInfinity;
      std::fill_n(logits.begin() + 2 * kVocab, kVocab, -kInfinity);
      logits[3 * kVocab + at] = 60;
      for (const float temperature : {0.0f, 1.0f}) {
        const Drawn drawn =
            draw(logits, std::vector<SampleRow>(4, {{.temperature = temperature}}), isa);
        EXPECT_THAT(drawn.status, ElementsAre(RowStatus::kNotFinite, RowStatus::kNotFinite,
                                              RowStatus::kNotFinite, RowStatus::kOk));
        EXPECT_THAT(drawn.tokens, ElementsAre(0, 0, 0, at));
      }
    }
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  std::vector<int32_t> masked;
  for (int32_t id = 0; id < 50; ++id)
    if (id != 31) masked.push_back(id);
  masked.push_back(-1);
  masked.push_back(50);
  std::vector<float> logits(50, 5.0f);
  logits[31] = -1000;
  SampleRow row;
  row.masked_ids = masked;
  for (const float temperature : {0.0f, 1.0f}) {
    row.temperature = temperature;
    EXPECT_EQ(draw(logits, {row}).tokens[0], 31);
  }
  logits[31] = -kInfinity;
  EXPECT_EQ(draw(logits, {row}).status[0], RowStatus::kNotFinite);
}

TEST(Sampler, HugeLogitsAndTinyTemperaturesAreGreedy) {
  std::vector<float> logits = {1e38f, 3e38f, -3e38f, 3e38f};
  EXPECT_EQ(draw(logits, {{{.temperature = 2e-5f}}}).tokens[0], 1);
  logits = {-3e38f, -2e38f, -kInfinity, -2e38f};
  EXPECT_EQ(draw(logits, {{{.temperature = 2e-5f}}}).tokens[0], 1);
}

// -- statistics

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = random_logits(70, 1, 3);
  for (const float temperature : {0.7f, 1.0f, 3.0f})
    for (const uint64_t seed : {1ull, 0xfedcba9876543210ull}) {
      std::vector<double> p;
      for (const float x : logits) p.push_back(std::exp(x / temperature));
      const double total = std::accumulate(p.begin(), p.end(), 0.0);
      for (double& x : p) x /= total;
      EXPECT_GT(fit(draws(logits, {{.temperature = temperature, .seed = seed}}, 100000), p), 1e-4);
    }
}

// goldens/README.md explains the row. The logits are made from its best 50 tokens, which is enough
// for top_k 20; all other tokens share the remaining probability evenly.
TEST(Sampler, FrequenciesEqualTheGoldens) {
  std::ifstream file(NANOVLLM_SOURCE_DIR "/tests/goldens/sampling_tiny-tales.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const Json golden = parse_json(line, "sampling_tiny-tales.jsonl");
  const Json& all = golden["cases"][0];
  const auto vocab = all["support"].get<size_t>();
  const double rest = all["rest"].get<double>() / static_cast<double>(vocab - all["top"].size());
  std::vector<float> logits(vocab, static_cast<float>(std::log(rest)));
  for (const Json& entry : all["top"])
    logits[entry[0].get<size_t>()] = static_cast<float>(std::log(entry[1].get<double>()));
  int cases = 0;
  for (const Json& c : golden["cases"]) {
    if (c["top_k"] == 0) continue;
    std::vector<double> p(vocab);
    double total = 0;
    for (const Json& entry : c["top"]) total += p[entry[0].get<size_t>()] = entry[1].get<double>();
    for (double& x : p) x /= total;
    EXPECT_EQ(c["top"].size(), c["support"].get<size_t>());
    const SampleRow row = {{.temperature = c["temperature"].get<float>(),
                            .top_p = c["top_p"].get<float>(),
                            .top_k = c["top_k"].get<int32_t>(),
                            .seed = 11}};
    EXPECT_GT(fit(draws(logits, row, 50000), p), 1e-4) << c["temperature"] << " " << c["top_p"];
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

// -- log-probabilities

struct Logprobs {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
};

Logprobs logprobs_of(std::vector<float> logits, std::vector<int32_t> targets, int64_t k,
                     Isa isa = best_isa(), const std::vector<SampleRow>& processed = {}) {
  const auto rows = static_cast<int64_t>(targets.size());
  const auto width = static_cast<size_t>(k) + 1;
  std::vector<Logprob> entries(targets.size() * width);
  token_logprobs(
      Tensor(logits.data(), DType::kF32, rows, static_cast<int64_t>(logits.size()) / rows), targets,
      k, entries, processed, isa);
  Logprobs result;
  for (size_t i = 0; i < entries.size(); ++i) {
    result.ids.push_back(entries[i].id);
    result.logprobs.push_back(entries[i].logprob);
    if (i % width == 0) result.ranks.push_back(entries[i].rank);
    else EXPECT_EQ(entries[i].rank, i % width);
  }
  return result;
}

TEST(TokenLogprobs, EqualNaiveReferenceOnEveryInstructionSet) {
  for (const int64_t vocab : {21, 64, 513, 8192, 151936})
    for (const float step : {0.0f, 0.5f})
      for (const int64_t k : {0, 1, 20}) {
        std::vector<float> logits = random_logits(vocab, 3, static_cast<uint32_t>(vocab + k));
        if (step != 0) round_to(logits, step);
        for (float& x : logits) x += 30;
        const auto target = static_cast<int32_t>(vocab * 2 / 3);
        for (size_t i = 5; i < logits.size(); i += 31)
          if (i != static_cast<size_t>(target)) logits[i] = -kInfinity;
        const LogprobsReference want = logprobs_reference(logits, target);
        for (const Isa isa : isas()) {
          const Logprobs got = logprobs_of(logits, {target}, k, isa);
          EXPECT_EQ(got.ranks[0], want.target_rank);
          EXPECT_EQ(got.ids[0], target);
          EXPECT_NEAR(got.logprobs[0], logits[target] - want.log_sum, 2e-6);
          for (int64_t i = 0; i < k; ++i) {
            ASSERT_EQ(got.ids[i + 1], want.order[i]) << isa_name(isa);
            ASSERT_NEAR(got.logprobs[i + 1], logits[want.order[i]] - want.log_sum, 2e-6);
          }
        }
      }
}

TEST(TokenLogprobs, ProcessedOnesAreThoseOfTheDistributionThatIsDrawnFrom) {
  const int64_t vocab = 700, k = 20;
  const std::vector<TokenCount> counts = {{3, 2}, {40, 0}};
  const std::vector<TokenBias> biases = {{7, 4.0f}, {9, -3.0f}};
  const std::vector<int32_t> masked = {1, 2}, allowed = {3, 4, 5, 7, 11, 100, 200, 699};
  std::vector<SampleRow> rows = {
      {{.temperature = 0.5f}},
      {{.temperature = 0}},
      {{.temperature = 1.5f, .top_k = 12}},
      {{.temperature = 0.8f, .top_p = 0.7f}},
      {{.temperature = 1, .min_p = 0.05f}},
      {{.temperature = 0.9f, .top_p = 0.8f, .min_p = 0.01f, .top_k = 30}},
      {{.temperature = 1, .presence_penalty = 0.5f, .repetition_penalty = 1.3f}, counts, biases},
      {{.temperature = 0, .frequency_penalty = 1}, counts, {}, masked},
      {{.temperature = 2, .top_k = 5}, {}, biases, {}, allowed}};
  std::vector<float> all;
  std::vector<int32_t> targets;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> logits = random_logits(vocab, 2, static_cast<uint32_t>(r));
    all.insert(all.end(), logits.begin(), logits.end());
    targets.push_back(reference(logits, rows[r]).token);
  }
  for (const Isa isa : isas()) {
    const Logprobs got = logprobs_of(all, targets, k, isa, rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto from = all.begin() + static_cast<ptrdiff_t>(r) * vocab;
      const Processed want = processed_reference({from, from + vocab}, rows[r]);
      for (size_t i = 0; i <= k; ++i) {
        const size_t at = r * (k + 1) + i;
        const double logprob = want.logprobs[static_cast<size_t>(got.ids[at])];
        if (std::isinf(logprob)) {
          EXPECT_EQ(got.logprobs[at], logprob);
        } else {
          EXPECT_NEAR(got.logprobs[at], logprob, 2e-6) << r << " " << i;
        }
        if (i > 0 && i <= want.order.size()) {
          EXPECT_EQ(got.ids[at], want.order[i - 1]) << r;
        }
      }
    }
  }
}

TEST(TokenLogprobs, AreTheSameBitsOnEveryInstructionSet) {
  const std::vector<float> logits = random_logits(30011, 4, 1);
  const Logprobs want = logprobs_of(logits, {77}, 15, Isa::kPlain);
  for (const Isa isa : isas()) {
    EXPECT_EQ(logprobs_of(logits, {77}, 15, isa).logprobs, want.logprobs) << isa_name(isa);
  }
}

TEST(TokenLogprobs, ImpossibleTokensAndRowsWithoutADistribution) {
  std::vector<float> logits = {0,          -kInfinity, 0,          -kInfinity,  //
                               0,          kNan,       0,          0,           //
                               -kInfinity, -kInfinity, -kInfinity, -kInfinity};
  const Logprobs got = logprobs_of(logits, {3, 0, 2}, 3);
  EXPECT_EQ(got.ranks[0], 4);
  EXPECT_EQ(got.logprobs[0], -kInfinity);
  EXPECT_THAT(std::vector(got.ids.begin(), got.ids.begin() + 4), ElementsAre(3, 0, 2, 1));
  EXPECT_NEAR(got.logprobs[1], -std::log(2.0), 1e-6);
  for (size_t i = 4; i < 12; ++i) EXPECT_TRUE(std::isnan(got.logprobs[i]));
  EXPECT_THAT(std::vector(got.ids.begin() + 4, got.ids.end()), ElementsAre(0, 0, 1, 2, 2, 0, 1, 2));
}

}  // namespace
}  // namespace nanovllm::cpu
