#include "nanovllm/ops/cpu/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/ops/cpu/parallel.h"
#include "nanovllm/ops/cpu/philox.h"

namespace nanovllm::cpu {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16})
    if (isa <= best_isa()) isas.push_back(isa);
  return isas;
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<RowStatus> status;
};

/// Every row of logits [rows, vocab] drawn with its parameters.
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

// -- the definition, word for word: everything is sorted and computed one token after another

float noise(const SampleRow& row, int32_t id) {
  uint64_t words[4] = {static_cast<uint64_t>(id) / 4, row.position, row.choice, 0};
  philox4x32_10(words, static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32),
                [](uint64_t a, uint32_t b) { return (a & 0xffffffff) * b; });
  const double u = (static_cast<double>(words[id % 4] & 0xffffffff) + 0.5) / 4294967296.0;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

struct Reference {
  std::vector<int32_t> kept;  // best first
  int32_t token = 0;
  double top_p_margin =
      1;  // how far the share of the tokens up to the last, or without it, is from top_p
};

Reference reference(std::vector<float> logits, const SampleRow& row) {
  for (const TokenCount& token : row.counts) {
    float& l = logits[token.id];
    l = l > 0 ? l / row.repetition_penalty : l * row.repetition_penalty;
    l -= row.frequency_penalty * static_cast<float>(token.in_answer);
    if (token.in_answer > 0) l -= row.presence_penalty;
  }
  for (const TokenBias& b : row.biases) logits[b.id] += b.bias;
  for (const int32_t id : row.masked_ids) logits[id] = -kInfinity;
  if (!row.allowed_ids.empty())
    for (size_t i = 0; i < logits.size(); ++i)
      if (!std::ranges::binary_search(row.allowed_ids, static_cast<int32_t>(i)))
        logits[i] = -kInfinity;
  std::vector<float> value(logits.size());
  const bool greedy = row.temperature < 1e-5f;
  for (size_t i = 0; i < logits.size(); ++i)
    value[i] = greedy ? logits[i] : logits[i] * (1 / row.temperature);
  Reference result;
  auto& kept = result.kept;
  for (size_t i = 0; i < value.size(); ++i)
    if (value[i] > -kInfinity) kept.push_back(static_cast<int32_t>(i));
  std::stable_sort(kept.begin(), kept.end(),
                   [&](int32_t a, int32_t b) { return value[a] > value[b]; });
  result.token = kept[0];
  if (greedy) return result;
  const float best = value[kept[0]];
  if (row.min_p > 0)
    std::erase_if(kept, [&](int32_t id) {
      return value[id] < static_cast<float>(best + std::log(static_cast<double>(row.min_p)));
    });
  if (row.top_k > 0 && kept.size() > static_cast<size_t>(row.top_k)) kept.resize(row.top_k);
  if (row.top_p < 1) {
    double total = 0, sum = 0;
    for (const int32_t id : kept) total += std::exp(double{value[id]} - best);
    size_t count = 0;
    while (count < kept.size()) {
      const double before = sum / total;
      sum += std::exp(double{value[kept[count++]]} - best);
      result.top_p_margin =
          std::min(std::abs(sum / total - row.top_p), std::abs(before - row.top_p));
      if (sum >= row.top_p * total) break;
    }
    kept.resize(count);
  }
  float best_score = -kInfinity;
  for (const int32_t id : kept) {
    const float score = value[id] + noise(row, id);
    if (score > best_score || (score == best_score && id < result.token)) {
      best_score = score;
      result.token = id;
    }
  }
  return result;
}

std::vector<float> random_logits(int64_t vocab, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

struct Case {
  const char* name;
  int64_t vocab;
  float spread;
  float step;  // logits are multiples of it where it is not 0: many ties
};

class SamplerGrid : public testing::TestWithParam<Case> {};

TEST_P(SamplerGrid, DrawsTheDefinitionsTokenOnEveryInstructionSet) {
  const auto& [name, vocab, spread, step] = GetParam();
  int compared = 0, skipped = 0;
  uint32_t number = 0;
  for (const float temperature : {0.0f, 1e-6f, 0.3f, 1.0f, 2.5f})
    for (const int32_t top_k : {0, 1, 5, 50, 700})
      for (const float top_p : {1.0f, 0.95f, 0.5f, 0.01f})
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          if (vocab > 10000 && number % 3 != 0) {
            ++number;
            continue;
          }
          std::vector<float> logits = random_logits(vocab, spread, number);
          for (float& x : logits)
            if (step != 0) x = std::round(x / step) * step;
          for (size_t i = 3; i < logits.size(); i += 11) logits[i] = -kInfinity;
          std::vector<int32_t> masked;
          if (number % 2 == 1)
            for (int32_t id = 1; id < vocab; id += 7) masked.push_back(id);
          std::vector<TokenCount> counts;
          std::vector<TokenBias> biases;
          std::vector<int32_t> allowed;
          if (number % 4 >= 2)
            for (int32_t id = 0; id < vocab; id += 3) {
              counts.push_back({id, id % 4});
              biases.push_back(
                  {static_cast<int32_t>(vocab) - 1 - id, static_cast<float>(id % 5) - 2.5f});
            }
          if (number % 8 == 5)
            for (int32_t id = 0; id < vocab; id += 2) allowed.push_back(id);
          const SampleRow row = {.temperature = temperature,
                                 .top_p = top_p,
                                 .min_p = min_p,
                                 .top_k = top_k,
                                 .seed = uint64_t{0x123456789abcdef0} * (number + 1),
                                 .position = number * 7919,
                                 .choice = number % 5,
                                 .counts = counts,
                                 .presence_penalty = 0.25f,
                                 .frequency_penalty = 0.3f,
                                 .repetition_penalty = number % 3 == 0 ? 1.0f : 1.4f,
                                 .biases = biases,
                                 .masked_ids = masked,
                                 .allowed_ids = allowed};
          ++number;
          const Reference want = reference(logits, row);
          if (want.top_p_margin < 1e-6) {  // the sum's rounding decides
            ++skipped;
            continue;
          }
          for (const Isa isa : isas_here()) {
            const Drawn drawn = draw(logits, {row}, isa);
            ASSERT_EQ(drawn.status[0], RowStatus::kOk);
            ASSERT_EQ(drawn.tokens[0], want.token)
                << isa_name(isa) << " temperature " << temperature << " top_k " << top_k
                << " top_p " << top_p << " min_p " << min_p << ", " << want.kept.size() << " kept";
            ++compared;
          }
        }
  EXPECT_GT(compared, 50);
  EXPECT_LT(skipped, compared / 10 + 10);
}

INSTANTIATE_TEST_SUITE_P(Rows, SamplerGrid,
                         testing::Values(Case{"one_token", 1, 1, 0}, Case{"three_tokens", 3, 1, 0},
                                         Case{"a_chunk", 64, 2, 0},
                                         Case{"a_chunk_and_one", 65, 2, 0},
                                         Case{"small", 512, 3, 0}, Case{"ties", 1000, 2, 0.5f},
                                         Case{"all_equal", 1000, 1, 1000},
                                         Case{"peaked", 5003, 8, 0}, Case{"flat", 20011, 0.1f, 0},
                                         Case{"large", 151936, 3, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

// Row i's token follows from row i alone.
TEST(Sampler, RowsDoNotDependOnOthersOrThreads) {
  constexpr int64_t kVocab = 3000;
  constexpr int kRows = 40;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  for (int r = 0; r < kRows; ++r) {
    const auto row = random_logits(kVocab, 2, static_cast<uint32_t>(r));
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back({.temperature = 0.2f + 0.1f * static_cast<float>(r % 8),
                    .top_p = r % 3 == 0 ? 0.9f : 1.0f,
                    .top_k = r % 4 == 0 ? 30 : 0,
                    .seed = static_cast<uint64_t>(r),
                    .position = 17});
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
  const SampleRow base = {.seed = 5, .position = 9, .choice = 2};
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

TEST(Sampler, NotFiniteRowsAreMarkedAndLeaveOthersAlone) {
  constexpr int64_t kVocab = 100;
  for (const Isa isa : isas_here())
    for (const int64_t at : {0, 63, 64, 99}) {
      std::vector<float> logits(kVocab * 4, 1.0f);
      logits[at] = kNan;
      logits[kVocab + at] = kInfinity;
      std::fill_n(logits.begin() + 2 * kVocab, kVocab, -kInfinity);
      logits[3 * kVocab + at] = 60;
      for (const float temperature : {0.0f, 1.0f}) {
        const Drawn drawn =
            draw(logits, std::vector<SampleRow>(4, {.temperature = temperature}), isa);
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
  for (const float temperature : {0.0f, 1.0f})
    EXPECT_EQ(draw(logits, {{.temperature = temperature, .masked_ids = masked}}).tokens[0], 31);
  logits[31] = -kInfinity;
  EXPECT_EQ(draw(logits, {{.masked_ids = masked}}).status[0], RowStatus::kNotFinite);
}

TEST(Sampler, HugeLogitsAndTinyTemperaturesAreGreedy) {
  std::vector<float> logits = {1e38f, 3e38f, -3e38f, 3e38f};
  EXPECT_EQ(draw(logits, {{.temperature = 2e-5f}}).tokens[0], 1);
  logits = {-3e38f, -2e38f, -kInfinity, -2e38f};
  EXPECT_EQ(draw(logits, {{.temperature = 2e-5f}}).tokens[0], 1);
}

// -- statistics

/// The probability of a chi-square at least as large. Wilson and Hilferty's cube-root
/// approximation.
double chi_square_p_value(double chi_square, double freedom) {
  const double variance = 2 / (9 * freedom);
  const double z = (std::cbrt(chi_square / freedom) - (1 - variance)) / std::sqrt(variance);
  return std::erfc(z / std::sqrt(2.0)) / 2;
}

double fit(const std::vector<int32_t>& tokens, const std::vector<double>& probabilities) {
  std::vector<double> counts(probabilities.size());
  for (const int32_t token : tokens) counts[token] += 1;
  double chi_square = 0, freedom = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(tokens.size());
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    freedom += 1;
  }
  return chi_square_p_value(chi_square, freedom);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = random_logits(70, 1, 3);
  for (const float temperature : {0.7f, 1.0f, 3.0f})
    for (const uint64_t seed : {1ull, 0xfedcba9876543210ull}) {
      std::vector<double> p;
      for (const float x : logits) p.push_back(std::exp(x / temperature));
      const double total = std::accumulate(p.begin(), p.end(), 0.0);
      for (double& x : p) x /= total;
      EXPECT_GT(fit(draws(logits, {.temperature = temperature, .seed = seed}, 100000), p), 1e-4);
    }
}

// goldens/README.md tells what the row holds. Its best 50 tokens stand for the logits, which is
// enough for top_k 20; the others share the rest evenly.
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
    const SampleRow row = {.temperature = c["temperature"].get<float>(),
                           .top_p = c["top_p"].get<float>(),
                           .top_k = c["top_k"].get<int32_t>(),
                           .seed = 11};
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
                     Isa isa = best_isa()) {
  const auto rows = static_cast<int64_t>(targets.size());
  const size_t size = targets.size() * static_cast<size_t>(k + 1);
  Logprobs result{std::vector<int32_t>(size, -1), std::vector<float>(size),
                  std::vector<int32_t>(targets.size())};
  token_logprobs(
      Tensor(logits.data(), DType::kF32, rows, static_cast<int64_t>(logits.size()) / rows), targets,
      k, result.ids, result.logprobs, result.ranks, isa);
  return result;
}

TEST(TokenLogprobs, EqualNaiveReferenceOnEveryInstructionSet) {
  for (const int64_t vocab : {21, 64, 513, 8192, 151936})
    for (const float step : {0.0f, 0.5f})
      for (const int64_t k : {0, 1, 20}) {
        std::vector<float> logits = random_logits(vocab, 3, static_cast<uint32_t>(vocab + k));
        for (float& x : logits) {
          if (step != 0) x = std::round(x / step) * step;
          x += 30;
        }
        const auto target = static_cast<int32_t>(vocab * 2 / 3);
        for (size_t i = 5; i < logits.size(); i += 31)
          if (i != static_cast<size_t>(target)) logits[i] = -kInfinity;
        std::vector<int32_t> order(logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
        double total = 0;
        for (const float x : logits) total += std::exp(double{x} - logits[order[0]]);
        const double log_sum = logits[order[0]] + std::log(total);
        const auto rank = std::find(order.begin(), order.end(), target) - order.begin() + 1;
        for (const Isa isa : isas_here()) {
          const Logprobs got = logprobs_of(logits, {target}, k, isa);
          EXPECT_EQ(got.ranks[0], rank);
          EXPECT_EQ(got.ids[0], target);
          EXPECT_NEAR(got.logprobs[0], logits[target] - log_sum, 2e-6);
          for (int64_t i = 0; i < k; ++i) {
            ASSERT_EQ(got.ids[i + 1], order[i]) << isa_name(isa);
            ASSERT_NEAR(got.logprobs[i + 1], logits[order[i]] - log_sum, 2e-6);
          }
        }
      }
}

TEST(TokenLogprobs, AreTheSameBitsOnEveryInstructionSet) {
  const std::vector<float> logits = random_logits(30011, 4, 1);
  const Logprobs want = logprobs_of(logits, {77}, 15, Isa::kPlain);
  for (const Isa isa : isas_here()) {
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
