#include "nanovllm/ops/cuda/tuning/gemm_choices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using cuda::GemmChoice;
using cuda::GemmChoices;

/// The key of a GEMM with this many tokens.
GemmChoices::Key key_of(int64_t num_tokens, int operation = 0) {
  const auto tensor = [](int64_t rows, int64_t columns) {
    return Tensor(nullptr, DType::kBF16, rows, columns);
  };
  return GemmChoices::key(operation, tensor(num_tokens, 200), tensor(num_tokens, 64),
                          tensor(200, 64));
}

TEST(GemmChoices, TheTextHasWhatWasMeasured) {
  GemmChoices choices;
  GemmChoice algorithm = {.in_pieces = true};
  for (size_t i = 0; i < algorithm.algorithm.size(); ++i)
    algorithm.algorithm[i] = std::numeric_limits<uint64_t>::max() - i;
  choices.set(key_of(300), {algorithm, 300});
  choices.set(key_of(300, 1), {{.kernel = 7}, 310});
  choices.set(key_of(8), {{.kernel = 3}});
  EXPECT_EQ(choices.num_measured(), 2);
  GemmChoices others;
  others.add_text(choices.to_text());
  EXPECT_EQ(others.num_measured(), 2);
  EXPECT_EQ(others.to_text(), choices.to_text());
  ASSERT_NE(others.find(key_of(320)), nullptr);  // of the same bucket
  EXPECT_EQ(others.find(key_of(320))->choice, algorithm);
  EXPECT_EQ(others.find(key_of(320))->num_tokens, 300);
  EXPECT_EQ(others.find(key_of(320, 1))->choice.kernel, 7);
  EXPECT_EQ(others.find(key_of(8)), nullptr);
  choices.forget_measured();
  EXPECT_EQ(choices.num_measured(), 0);
  EXPECT_EQ(choices.find(key_of(300)), nullptr);
  EXPECT_EQ(choices.find(key_of(8))->choice.kernel, 3);
}

TEST(GemmChoices, TheOneOfMostTokensStays) {
  const auto text_of = [](int32_t kernel, int64_t num_tokens) {
    GemmChoices choices;
    choices.set(key_of(num_tokens), {{.kernel = kernel}, num_tokens});
    return choices.to_text();
  };
  GemmChoices choices;
  choices.set(key_of(310), {{.kernel = 1}});
  for (const auto& [kernel, num_tokens, expected] :
       {std::array{2, 300, 2}, {3, 310, 3}, {4, 310, 3}, {5, 305, 3}, {6, 320, 6}}) {
    choices.add_text(text_of(kernel, num_tokens));
    EXPECT_EQ(choices.find(key_of(310))->choice.kernel, expected) << num_tokens;
  }
  EXPECT_EQ(choices.find(key_of(310))->num_tokens, 320);
}

TEST(GemmChoices, WrongTextIsRefusedAsAWhole) {
  GemmChoices choices;
  choices.set(key_of(300), {{.kernel = 7}, 300});
  const std::string good = choices.to_text();
  std::istringstream split(good);
  std::vector<std::string> words;
  for (std::string word; split >> word;) words.push_back(word);
  const auto line_with = [&](size_t index, const std::string& word) {
    std::string line;
    for (size_t i = 0; i < words.size(); ++i)
      line += (i > 0 ? " " : "") + (i == index ? word : words[i]);
    return line + "\n";
  };
  ASSERT_EQ(line_with(words.size(), ""), good);
  constexpr size_t kNumTokens = std::tuple_size_v<GemmChoices::Key>, kKernel = kNumTokens + 1;
  std::vector<std::string> wrong = {"\n",
                                    good.substr(0, good.rfind(' ')),
                                    good + "1\n",
                                    good.substr(0, good.size() - 1) + " 1\n",
                                    line_with(kNumTokens, "0"),
                                    line_with(kNumTokens, "-300"),
                                    line_with(kKernel, "-3")};
  for (size_t i = 0; i < words.size(); ++i) wrong.push_back(line_with(i, "x"));
  for (const std::string& text : wrong) {
    GemmChoices none;
    EXPECT_THROW(none.add_text(good + text), UserError) << text;
    EXPECT_EQ(none.num_measured(), 0);
  }
}

/// What a start measures is in its cache file; a start that measures nothing leaves it as it is.
TEST(GpuGemmChoices, AStartMeasuresWhatNoEarlierOneHas) {
  if (!has_cuda_driver()) GTEST_SKIP() << "no NVIDIA driver here";
  for (const bool portable : {false, true}) {
    std::string folder = testing::TempDir() + "choicesXXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    // Starts an engine with one GEMM. Returns whether it replaced the file.
    const auto measures = [&](int64_t max_tokens) {
      constexpr int64_t kN = 256, kK = 1024;
      const auto gpu = make_cuda_backend({.portable = portable});
      const std::vector<uint16_t> zeros(kN * kK);
      const WeightPtr w = gpu->pack(
          Tensor(const_cast<uint16_t*>(zeros.data()), DType::kBF16, kN, kK), DType::kBF16);
      const Buffer x = gpu->allocate(static_cast<size_t>(max_tokens * kK) * 2),
                   out = gpu->allocate(static_cast<size_t>(max_tokens * kN) * 2);
      std::vector<int64_t> sizes;
      const auto run = [&](const WarmupStep& step) {
        sizes.push_back(step.num_tokens);
        gpu->matmul(Tensor(out.get(), DType::kBF16, step.num_tokens, kN),
                    Tensor(x.get(), DType::kBF16, step.num_tokens, kK), *w);
      };
      const auto start = fs::file_time_type::clock::now() - std::chrono::hours(1);
      for (const auto& file : fs::directory_iterator(folder)) fs::last_write_time(file, start);
      // The size of the weights gives it more than a minute.
      gpu->prepare({.max_tokens = max_tokens,
                    .max_seqs = 100,
                    .graph_sizes = {},
                    .weight_bytes = size_t{1} << 40,
                    .run = run},
                   {.folder = folder});
      EXPECT_EQ(sizes.front(), max_tokens);
      EXPECT_EQ(std::ranges::count(sizes, 100), 1);
      EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
      return fs::last_write_time(*fs::directory_iterator(folder)) > start + std::chrono::minutes(1);
    };
    EXPECT_TRUE(measures(300));
    EXPECT_FALSE(measures(300));
    EXPECT_TRUE(measures(310)) << "a larger number of tokens of the same bucket";
    EXPECT_FALSE(measures(310));
    EXPECT_FALSE(measures(300));
    fs::remove_all(folder);
  }
}

}  // namespace
}  // namespace nanovllm
