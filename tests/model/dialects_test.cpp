#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "nanovllm/checkpoint/checkpoint.h"
#include "nanovllm/checkpoint/dummy_weights.h"
#include "nanovllm/checkpoint/quantized/dialect.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Sizes that no group or block divides, except that packed dimensions are multiples of 8.
constexpr int64_t kRows = 40, kColumns = 72;

std::optional<Quantization> parse(const Json& config) {
  return parse_quantization(JsonFields({{"quantization_config", config}}, "config.json: "));
}

/// A file of tensors of any dtype.
class Tensors {
 public:
  template <class T>
  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
           const std::vector<T>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  Checkpoint open() const {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    folder_.write("model.safetensors", safetensors_file(text, data_));
    return Checkpoint(folder_.path());
  }

 private:
  TempFolder folder_;
  Json header_ = Json::object();
  std::string data_;
};

/// A quantized matrix as the definitions of the formats see it: values, and for each element its
/// scale and zero point.
struct Matrix {
  int64_t group = kColumns;  // columns of a group
  int bits = 4;
  std::vector<int> values, zeros;  // [rows, columns], [rows, groups]
  std::vector<float> scales;       // [rows, groups]
  std::vector<int> group_of;       // [columns]

  Matrix(int bits_of_values, int64_t group_size) : group(group_size), bits(bits_of_values) {
    std::mt19937 random(7);
    const int64_t groups = num_groups();
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      values.push_back(static_cast<int>(random() % (1u << bits)));
    for (int64_t i = 0; i < kRows * groups; ++i) {
      zeros.push_back(static_cast<int>(random() % ((1u << bits) - 1)) + 1);
      scales.push_back(static_cast<float>(random() % 64 + 1) / 1024);  // exact in 16 bits
    }
    for (int64_t i = 0; i < kColumns; ++i) group_of.push_back(static_cast<int>(i / group));
  }
  int64_t num_groups() const { return (kColumns + group - 1) / group; }
  int value(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * kColumns + column)];
  }
  float element(int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row * num_groups() + group_of[static_cast<size_t>(column)]);
    return static_cast<float>(value(row, column) - zeros[at]) * scales[at];
  }
  std::vector<uint16_t> halves(bool transposed, uint16_t (*convert)(float)) const {
    std::vector<uint16_t> out;
    const int64_t groups = num_groups();
    for (int64_t i = 0; i < kRows * groups; ++i) {
      const int64_t at = transposed ? i % kRows * groups + i / kRows : i;
      out.push_back(convert(scales[static_cast<size_t>(at)]));
    }
    return out;
  }
};

/// Words of 32 bits: field p of word w of row r is field(r, w * fields + p).
std::vector<uint32_t> pack(int64_t rows, int64_t fields_in_row, int bits,
                           const std::function<int(int64_t, int64_t)>& field) {
  std::vector<uint32_t> words;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t first = 0; first < fields_in_row; first += 32 / bits) {
      uint32_t word = 0;
      for (int64_t p = 0; p < 32 / bits && first + p < fields_in_row; ++p)
        word |= static_cast<uint32_t>(field(r, first + p)) << (p * bits);
      words.push_back(word);
    }
  return words;
}

/// The whole matrix and a part of it that begins inside a group.
void expect_matrix(Checkpoint checkpoint, const Json& config, const Matrix& matrix) {
  const WeightRows whole = take_weight(checkpoint, parse(config), "m.weight", {kRows, kColumns});
  checkpoint.require_all_taken([](const std::string&) { return false; });
  const auto expect = [&](Range rows, Range columns) {
    const WeightRows part = whole.part(rows, columns);
    EXPECT_EQ(part.dtype(), DType::kF32);
    std::vector<float> read(static_cast<size_t>(rows.count * columns.count));
    part.read(0, rows.count, read.data());
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t j = 0; j < columns.count; ++j)
        ASSERT_EQ(read[static_cast<size_t>(i * columns.count + j)],
                  matrix.element(rows.first + i, columns.first + j))
            << rows.first + i << " " << columns.first + j;
  };
  expect({0, kRows}, {0, kColumns});
  expect({8, 17}, {20, 33});
  EXPECT_NE(whole.quantized().matrix, nullptr);
}

TEST(Dialects, Awq) {
  const Matrix m(4, 32);
  // In a word, the columns 0 to 7 have the places 0, 4, 1, 5, 2, 6, 3, 7.
  constexpr std::array<int64_t, 8> kColumnAt = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto in_order = [&](int64_t p) {
    return p / 8 * 8 + kColumnAt[static_cast<size_t>(p % 8)];
  };
  Tensors file;
  file.add("m.qweight", "I32", {kColumns, kRows / 8},
           pack(kColumns, kRows, 4, [&](int64_t k, int64_t p) { return m.value(in_order(p), k); }));
  file.add("m.qzeros", "I32", {3, kRows / 8}, pack(3, kRows, 4, [&](int64_t g, int64_t p) {
             return m.zeros[static_cast<size_t>(in_order(p) * 3 + g)] % 16;
           }));
  file.add("m.scales", "F16", {3, kRows}, m.halves(true, f32_to_f16));
  expect_matrix(file.open(),
                {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}}, m);
}

Tensors gptq_file(const Matrix& m, int stored_less) {
  Tensors file;
  const int64_t fields = 32 / m.bits, groups = m.num_groups();
  std::vector<uint32_t> words(static_cast<size_t>(kColumns / fields * kRows));
  for (int64_t k = 0; k < kColumns; ++k)
    for (int64_t n = 0; n < kRows; ++n)
      words[static_cast<size_t>(k / fields * kRows + n)] |= static_cast<uint32_t>(m.value(n, k))
                                                            << (k % fields * m.bits);
  file.add("m.qweight", "I32", {kColumns / fields, kRows}, words);
  file.add("m.qzeros", "I32", {groups, kRows / fields},
           pack(groups, kRows, m.bits, [&](int64_t g, int64_t n) {
             return m.zeros[static_cast<size_t>(n * groups + g)] - stored_less;
           }));
  file.add("m.scales", "F16", {groups, kRows}, m.halves(true, f32_to_f16));
  file.add("m.g_idx", "I32", {kColumns}, m.group_of);
  file.add("m.bias", "F16", {kRows}, std::vector<uint16_t>(kRows));
  return file;
}

TEST(Dialects, Gptq) {
  for (const int bits : {4, 8})
    for (const bool in_order : {true, false})
      for (const bool v2 : {true, false}) {
        Matrix m(bits, 32);
        if (!in_order) std::shuffle(m.group_of.begin(), m.group_of.end(), std::mt19937(3));
        expect_matrix(gptq_file(m, v2 ? 0 : 1).open(),
                      {{"quant_method", "gptq"},
                       {"bits", bits},
                       {"group_size", 32},
                       {"desc_act", !in_order},
                       {"checkpoint_format", v2 ? "gptq_v2" : "gptq"}},
                      m);
      }
}

TEST(Dialects, GptqWithAGroupThatDoesNotExist) {
  Matrix m(4, 32);
  m.group_of[5] = 3;
  Checkpoint checkpoint = gptq_file(m, 1).open();
  const Json config = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  const WeightRows weight = take_weight(checkpoint, parse(config), "m.weight", {kRows, kColumns});
  EXPECT_THAT(user_error([&] { weight.quantized(); }), HasSubstr("m: a column is in group 3"));
}

TEST(Dialects, CompressedTensorsIntegers) {
  for (const int bits : {4, 8})
    for (const int64_t group : {int64_t{32}, kColumns})
      for (const bool symmetric : {true, false}) {
        Matrix m(bits, group);
        const int64_t groups = m.num_groups(), fields = 32 / bits;
        if (symmetric) std::ranges::fill(m.zeros, 1 << (bits - 1));
        Tensors file;
        file.add("m.weight_packed", "I32", {kRows, kColumns / fields},
                 pack(kRows, kColumns, bits, [&](int64_t n, int64_t k) { return m.value(n, k); }));
        file.add("m.weight_scale", "BF16", {kRows, groups}, m.halves(false, f32_to_bf16));
        file.add("m.weight_shape", "I64", {2}, std::vector<int64_t>{kRows, kColumns});
        std::vector<uint32_t> zeros(static_cast<size_t>(kRows / fields * groups));
        for (int64_t n = 0; n < kRows; ++n)
          for (int64_t g = 0; g < groups; ++g)
            zeros[static_cast<size_t>(n / fields * groups + g)] |=
                static_cast<uint32_t>(m.zeros[static_cast<size_t>(n * groups + g)] &
                                      ((1 << bits) - 1))
                << (n % fields * bits);
        if (!symmetric) file.add("m.weight_zero_point", "I32", {kRows / fields, groups}, zeros);
        Json weights = {{"type", "int"},
                        {"num_bits", bits},
                        {"strategy", group == kColumns ? "channel" : "group"},
                        {"symmetric", symmetric}};
        if (group != kColumns) weights["group_size"] = group;
        expect_matrix(file.open(),
                      {{"quant_method", "compressed-tensors"},
                       {"format", "pack-quantized"},
                       {"config_groups", {{"group_0", {{"weights", weights}}}}}},
                      m);
      }
}

/// E4M3 with a scale for each block, which are `shape` of the scales.
void expect_e4m3(const Json& config, const std::string& suffix, int64_t block_rows,
                 int64_t block_columns, const std::vector<int64_t>& shape) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < kRows * kColumns; ++i)
    bytes.push_back(static_cast<uint8_t>(random() % 2 * 128 + random() % 127));
  const int64_t groups = (kColumns + block_columns - 1) / block_columns;
  std::vector<float> scales;
  for (int64_t i = 0; i < (kRows + block_rows - 1) / block_rows * groups; ++i)
    scales.push_back(static_cast<float>(random() % 1000 + 1) / 3e5f);
  Tensors file;
  file.add("m.weight", "F8_E4M3", {kRows, kColumns}, bytes);
  file.add("m" + suffix, "F32", shape, scales);
  Checkpoint checkpoint = file.open();
  const WeightRows whole = take_weight(checkpoint, parse(config), "m.weight", {kRows, kColumns});
  std::vector<float> read(static_cast<size_t>(kRows * kColumns));
  whole.read(0, kRows, read.data());
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kColumns; ++j) {
      const auto at = static_cast<size_t>(i * kColumns + j);
      ASSERT_EQ(read[at],
                e4m3_to_f32(bytes[at]) *
                    scales[static_cast<size_t>(i / block_rows * groups + j / block_columns)]);
    }
}

TEST(Dialects, E4M3) {
  const auto compressed = [](const char* strategy) {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", "float-quantized"},
                {"config_groups",
                 {{"group_0",
                   {{"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", strategy}}}}}}}};
  };
  const Json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {16, 32}}};
  expect_e4m3(blocks, ".weight_scale_inv", 16, 32, {3, 3});
  expect_e4m3({{"quant_method", "fp8"}}, ".weight_scale", kRows, kColumns, {});
  expect_e4m3(compressed("channel"), ".weight_scale", 1, kColumns, {kRows, 1});
  expect_e4m3(compressed("tensor"), ".weight_scale", kRows, kColumns, {1});
}

TEST(Dialects, ActivationsAreQuantizedIfTheCheckpointSaysSo) {
  Tensors file;
  file.add("m.weight", "F8_E4M3", {kRows, kColumns}, std::vector<uint8_t>(kRows * kColumns));
  file.add("m.weight_scale", "F32", {kRows, 1}, std::vector<float>(kRows, 1));
  Checkpoint checkpoint = file.open();
  const auto quantizes = [&](const Json& input_activations) {
    const Json group = {{"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "channel"}}},
                        {"input_activations", input_activations}};
    const Json config = {{"quant_method", "compressed-tensors"},
                         {"format", "float-quantized"},
                         {"config_groups", {{"group_0", group}}}};
    const WeightRows weight = take_weight(checkpoint, parse(config), "m.weight", {kRows, kColumns});
    return weight.quantized().matrix->quantizes_activations;
  };
  EXPECT_TRUE(quantizes({{"type", "float"}, {"num_bits", 8}, {"strategy", "token"}}));
  EXPECT_FALSE(quantizes(nullptr));
}

TEST(Dialects, WhereRanksMayDivideColumns) {
  const auto unit = [](const Json& config) { return parse(config)->column_unit; };
  const auto blocks = [](int64_t columns) {
    return Json{{"quant_method", "fp8"}, {"weight_block_size", {128, columns}}};
  };
  EXPECT_EQ(unit(blocks(128)), 128);
  EXPECT_EQ(unit(blocks(256)), 128);
  EXPECT_EQ(unit(blocks(64)), 0);
  EXPECT_EQ(unit({{"quant_method", "fp8"}}), 1);
  EXPECT_EQ(unit({{"quant_method", "awq"}, {"group_size", 64}}), 32);
  EXPECT_EQ(unit({{"quant_method", "awq"}, {"group_size", 16}}), 0);
  Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}};
  EXPECT_EQ(unit(gptq), 1);
  gptq["desc_act"] = true;
  EXPECT_EQ(unit(gptq), 0);
}

TEST(Dialects, WhatTheCheckpointLeavesOutStaysAsItIs) {
  Tensors file;
  file.add("m.weight", "BF16", {2, 2}, std::vector<uint16_t>{1, 2, 3, 4});
  Checkpoint checkpoint = file.open();
  for (const Json& config : {Json{{"quant_method", "awq"}}, Json{{"quant_method", "fp8"}},
                             Json{{"quant_method", "gptq"}, {"bits", 4}}}) {
    const WeightRows weight = take_weight(checkpoint, parse(config), "m.weight", {2, 2});
    EXPECT_EQ(weight.dtype(), DType::kBF16);
    EXPECT_EQ(weight.quantized().matrix, nullptr);
  }
}

TEST(Dialects, ABiasThatIsNotZeroIsNotIgnored) {
  Tensors file;
  file.add("m.bias", "F16", {3}, std::vector<uint16_t>{0, 0, 1});
  EXPECT_THAT(
      user_error([&] { file.open().require_all_taken([](const std::string&) { return false; }); }),
      HasSubstr("tensor \"m.bias\" does not belong to this architecture"));
}

TEST(Dialects, RefusedByName) {
  const auto error = [](const Json& config) { return user_error([&] { parse(config); }); };
  EXPECT_THAT(error({{"quant_method", "bitsandbytes"}}),
              AllOf(HasSubstr("config.json: quantization_config.quant_method is \"bitsandbytes\""),
                    HasSubstr("supported are fp8, compressed-tensors, awq and gptq")));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 3}}), HasSubstr("bits is 3"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}),
              HasSubstr("checkpoint_format is \"marlin\""));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"version", "gemv"}}), HasSubstr("\"gemv\""));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"bits", 8}}), HasSubstr("bits is 8"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}),
              HasSubstr("weight_block_size is [128,0]"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), HasSubstr("fmt is \"e5m2\""));
  EXPECT_THAT(error({{"quant_method", "awq"},
                     {"modules_to_not_convert", std::vector<std::string>(5000, "x")}}),
              HasSubstr("modules_to_not_convert has 5000 names"));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"modules_to_not_convert", {1}}}),
              HasSubstr("modules_to_not_convert is [1]; it must be a list of names"));
  const auto compressed = [&](const Json& weights, const char* format = "pack-quantized") {
    return error({{"quant_method", "compressed-tensors"},
                  {"format", format},
                  {"config_groups", {{"group_0", {{"weights", weights}}}}}});
  };
  EXPECT_THAT(compressed({{"type", "float"}, {"num_bits", 4}, {"strategy", "channel"}}),
              HasSubstr("num_bits is 4"));
  EXPECT_THAT(compressed({{"type", "int"}, {"num_bits", 2}, {"strategy", "group"}}),
              HasSubstr("num_bits is 2"));
  EXPECT_THAT(compressed({{"type", "int"}, {"num_bits", 4}, {"strategy", "tensor"}}),
              HasSubstr("strategy is \"tensor\""));
  EXPECT_THAT(
      compressed({{"type", "int"}, {"num_bits", 8}, {"strategy", "channel"}}, "int-quantized"),
      HasSubstr("format is \"int-quantized\""));
}

TEST(Dialects, MadeAtLoad) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kColumns; ++i) values.push_back(normal(random));
  std::fill_n(values.begin(), kColumns, 0.0f);
  Tensors file;
  const std::string module = "model.layers.0.mlp.up_proj";
  for (const std::string& name : {module, std::string("lm_head"), module + "s.mlp.gate"})
    file.add(name + ".weight", "F32", {kRows, kColumns}, values);
  Checkpoint checkpoint = file.open();
  for (const char* format : {"fp8", "int8"}) {
    const auto made = parse_quantization(JsonFields(Json::object(), ""), format);
    const WeightRows weight =
        take_weight(checkpoint, made, module + ".weight", {kRows, kColumns}).part({0, 33}, {3, 60});
    ASSERT_NE(weight.quantized().matrix, nullptr);
    std::vector<float> read(33 * 60);
    weight.read(0, 33, read.data());
    for (int64_t i = 0; i < 33; ++i) {
      float largest = 0;
      for (int64_t j = 0; j < kColumns; ++j)
        largest = std::max(largest, std::fabs(values[static_cast<size_t>(i * kColumns + j)]));
      for (int64_t j = 0; j < 60; ++j) {
        const float exact = values[static_cast<size_t>(i * kColumns + 3 + j)];
        const float step = format == std::string("int8")
                               ? largest / 127
                               : std::max(std::fabs(exact) / 8, largest / 448 / 512);
        ASSERT_NEAR(read[static_cast<size_t>(i * 60 + j)], exact, step * 0.501f) << i << " " << j;
      }
    }
    for (const char* name : {"lm_head.weight", "model.layers.0.mlp.up_projs.mlp.gate.weight"})
      EXPECT_EQ(take_weight(checkpoint, made, name, {kRows, kColumns}).quantized().matrix, nullptr);
  }
  const auto with_head = parse_quantization(JsonFields(Json::object(), ""), "int8", true);
  const auto is_made = [&](const std::optional<Quantization>& quantization, const char* name) {
    return take_weight(checkpoint, quantization, name, {kRows, kColumns}).quantized().matrix !=
           nullptr;
  };
  EXPECT_TRUE(is_made(with_head, "lm_head.weight"));
  EXPECT_FALSE(is_made(with_head, "model.layers.0.mlp.up_projs.mlp.gate.weight"));
  // Of a quantized checkpoint, what it leaves out.
  const Json awq = {{"quantization_config", {{"quant_method", "awq"}}}};
  const auto rest = parse_quantization(JsonFields(awq, "config.json: "), "int8", true);
  EXPECT_TRUE(is_made(rest, "lm_head.weight"));
}

TEST(Dialects, TheCheckpointsOwnMayBeNamed) {
  const auto parsed = [](const std::string& method, const char* asked) {
    Json config = Json::object();
    if (!method.empty()) config["quantization_config"] = {{"quant_method", method}};
    return parse_quantization(JsonFields(config, ""), asked);
  };
  for (const auto& [method, asked] :
       {std::pair{"awq", "awq"}, {"awq", "awq_marlin"}, {"fp8", "fp8"}})
    EXPECT_EQ(parsed(method, asked)->description, parsed(method, "auto")->description);
  for (const auto& [method, asked, named] :
       {std::tuple{"awq", "gptq_marlin", "gptq"}, {"fp8", "awq", "awq"}, {"", "gptq", "gptq"}})
    EXPECT_THAT([&] { parsed(method, asked); },
                ThrowsMessage<UserError>(std::string("the checkpoint is not quantized with ") +
                                         named + "; leave quantization out"));
}

TEST(Dialects, RandomWeightsOfEachDialect) {
  const Json int4 = {{"type", "int"}, {"num_bits", 4}, {"strategy", "group"}, {"group_size", 32}};
  for (const Json& config : {Json{{"quant_method", "awq"}, {"group_size", 32}},
                             Json{{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 32}},
                             Json{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}},
                             Json{{"quant_method", "compressed-tensors"},
                                  {"format", "pack-quantized"},
                                  {"ignore", {"lm_head", "re:.*layers.1.*"}},
                                  {"config_groups", {{"group_0", {{"weights", int4}}}}}}}) {
    const auto quantization = parse(config);
    const auto random = dummy_weights(DType::kBF16, 0.02f, [&](const std::string& module) {
      return is_quantized(quantization, module);
    });
    const WeightRows weight =
        take_weight(*random, quantization, "model.layers.0.mlp.up_proj.weight", {kRows, kColumns});
    ASSERT_NE(weight.quantized().matrix, nullptr);
    std::vector<float> read(static_cast<size_t>(kRows * kColumns));
    weight.read(0, kRows, read.data());
    double squares = 0;
    for (const float value : read) squares += double{value} * double{value};
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(read.size())), 0.02, 0.015) << config;
    for (const char* name : {"lm_head.weight", "model.layers.0.mlp.gate.weight"})
      EXPECT_EQ(take_weight(*random, quantization, name, {kRows, kColumns}).dtype(), DType::kBF16);
    if (config.contains("ignore")) {
      EXPECT_EQ(
          take_weight(*random, quantization, "model.layers.1.mlp.up_proj.weight", {kRows, kColumns})
              .dtype(),
          DType::kBF16);
    }
  }
}

}  // namespace
}  // namespace nanovllm
