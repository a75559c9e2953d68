#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "nanovllm/checkpoint/checkpoint.h"
#include "nanovllm/checkpoint/dummy_weights.h"
#include "nanovllm/checkpoint/quantized/dialect.h"
#include "tests/model/model_test_util.h"
#include "tests/model/quantized_files.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::optional<Quantization> quantization_of(const Json& config) {
  return parse_quantization(JsonFields({{"quantization_config", config}}, "config.json: "));
}

/// The whole matrix and a part of it that begins inside a group.
void expect_matrix(Checkpoint checkpoint, const Json& config, const Matrix& matrix) {
  const WeightRows whole =
      take_weight(checkpoint, quantization_of(config), "m.weight", {kRows, kColumns});
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
  EXPECT_EQ(user_error([&] {
              take_weight(checkpoint, quantization_of(config), "m.weight", {kRows, kColumns});
            }),
            "m.g_idx: a column is in group 3; there are 3 groups");
}

TEST(Dialects, GptqInActivationOrderNeedsTheGroups) {
  const Matrix m(4, 32);
  Checkpoint checkpoint = gptq_file(m, 1, /*has_groups=*/false).open();
  Json config = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  expect_matrix(gptq_file(m, 1, /*has_groups=*/false).open(), config, m);
  config["desc_act"] = true;
  EXPECT_THAT(user_error([&] {
                take_weight(checkpoint, quantization_of(config), "m.weight", {kRows, kColumns});
              }),
              HasSubstr("tensor \"m.g_idx\" is missing"));
}

TEST(Dialects, CompressedTensorsIntegers) {
  for (const int bits : {4, 8})
    for (const int64_t group : {int64_t{32}, kColumns})
      for (const bool symmetric : {true, false}) {
        Matrix m(bits, group);
        if (symmetric) std::ranges::fill(m.zeros, 1 << (bits - 1));
        expect_matrix(compressed_file(m, symmetric).open(), compressed_config(m, symmetric), m);
      }
}

TEST(Dialects, CompressedTensorsInActivationOrder) {
  Matrix m(4, 32);
  const auto take = [&](const Json& actorder, bool symmetric = false) {
    Checkpoint checkpoint = compressed_file(m, /*symmetric=*/false).open();
    const auto quantization = quantization_of(compressed_config(m, symmetric, actorder));
    take_weight(checkpoint, quantization, "m.weight", {kRows, kColumns});
  };
  for (const Json& by_group : {Json("group"), Json("dynamic"), Json(true)})
    EXPECT_THAT(user_error([&] { take(by_group); }),
                HasSubstr("tensor \"m.weight_g_idx\" is missing"));
  EXPECT_THAT(user_error([&] { take("groups"); }),
              HasSubstr("actorder is \"groups\", which is not supported"));
  EXPECT_EQ(user_error([&] { take(nullptr, /*symmetric=*/true); }),
            "m.weight_zero_point contradicts quantization_config, where symmetric is true");
  for (const Json& in_order : {Json("weight"), Json("static"), Json(false)})
    expect_matrix(compressed_file(m, false).open(), compressed_config(m, false, in_order), m);
  std::shuffle(m.group_of.begin(), m.group_of.end(), std::mt19937(3));
  Tensors file = compressed_file(m, false);
  file.add("m.weight_g_idx", "I32", {kColumns}, m.group_of);
  expect_matrix(file.open(), compressed_config(m, false, "group"), m);
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
  const WeightRows whole =
      take_weight(checkpoint, quantization_of(config), "m.weight", {kRows, kColumns});
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

TEST(Dialects, ScalesOfBlocksNeedTheirSize) {
  Tensors file;
  file.add("m.weight", "F8_E4M3", {kRows, kColumns}, std::vector<uint8_t>(kRows * kColumns));
  file.add("m.weight_scale_inv", "F32", {1, 1}, std::vector<float>(1));
  Checkpoint checkpoint = file.open();
  EXPECT_EQ(user_error([&] {
              take_weight(checkpoint, quantization_of({{"quant_method", "fp8"}}), "m.weight",
                          {kRows, kColumns});
            }),
            "config.json: quantization_config.weight_block_size is missing, but "
            "m.weight_scale_inv has scales of blocks");
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
    const WeightRows weight =
        take_weight(checkpoint, quantization_of(config), "m.weight", {kRows, kColumns});
    return weight.quantized().matrix->quantizes_activations;
  };
  EXPECT_TRUE(quantizes({{"type", "float"}, {"num_bits", 8}, {"strategy", "token"}}));
  EXPECT_FALSE(quantizes(nullptr));
}

TEST(Dialects, WhereRanksMayDivideColumns) {
  const auto unit = [](const Json& config) { return quantization_of(config)->column_unit; };
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
    const WeightRows weight = take_weight(checkpoint, quantization_of(config), "m.weight", {2, 2});
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
  const auto error = [](const Json& config) {
    return user_error([&] { quantization_of(config); });
  };
  EXPECT_THAT(error({{"quant_method", "bitsandbytes"}}),
              AllOf(HasSubstr("config.json: quantization_config.quant_method is \"bitsandbytes\""),
                    HasSubstr("supported are fp8, compressed-tensors, awq, gptq, auto-round and "
                              "modelopt")));
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

TEST(Dialects, WhatOtherExportersWriteIsRefusedByName) {
  const auto error = [](const Json& config) {
    return user_error([&] { quantization_of(config); });
  };
  const auto auto_round = [&](const char* key, const Json& value) {
    Json config = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 32}};
    config[key] = value;
    return error(config);
  };
  EXPECT_THAT(auto_round("packing_format", "auto_round:llm_compressor"),
              HasSubstr("packing_format is \"auto_round:llm_compressor\""));
  EXPECT_THAT(auto_round("data_type", "mx_fp"), HasSubstr("data_type is \"mx_fp\""));
  EXPECT_THAT(auto_round("act_bits", 8), HasSubstr("act_bits is 8"));
  EXPECT_THAT(auto_round("bits", 2), HasSubstr("bits is 2"));
  EXPECT_THAT(auto_round("bits", nullptr), HasSubstr("quantization_config.bits is missing"));
  EXPECT_THAT(auto_round("extra_config", {{"m", {{"bits", 8}}}}),
              HasSubstr("extra_config.m is {\"bits\":8}"));
  EXPECT_THAT(auto_round("extra_config", {{"m", {{"group_size", 64}}}}),
              HasSubstr("extra_config.m is {\"group_size\":64}"));
  EXPECT_NO_THROW(quantization_of({{"quant_method", "auto-round"},
                                   {"bits", 4},
                                   {"group_size", 32},
                                   {"extra_config", {{"m", {{"bits", 16}, {"group_size", 64}}}}}}));
  EXPECT_THAT(error({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
              HasSubstr("quant_algo is \"NVFP4\""));
  EXPECT_THAT(error({{"quant_method", "modelopt"}}), HasSubstr("quant_algo is missing"));
  EXPECT_THAT(error({{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", nullptr}}}}),
              HasSubstr("quantization.quant_algo is missing"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 4}, {"dynamic", {{"+:m", {{"bits", 8}}}}}}),
              HasSubstr("dynamic is "));
  EXPECT_NO_THROW(quantization_of(
      {{"quant_method", "gptq"}, {"bits", 4}, {"dynamic", {{"-:m", Json::object()}}}}));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"w_bit", 3}}), HasSubstr("w_bit is 3"));
  const auto weights = [](int bits) {
    return Json{{"weights", {{"type", "int"}, {"num_bits", bits}, {"strategy", "channel"}}}};
  };
  const auto compressed = [&](const Json& groups, const char* status = "frozen") {
    return error({{"quant_method", "compressed-tensors"},
                  {"format", "pack-quantized"},
                  {"quantization_status", status},
                  {"config_groups", groups}});
  };
  EXPECT_THAT(compressed({{"a", weights(4)}, {"b", weights(8)}}),
              HasSubstr("all groups must quantize weights alike"));
  EXPECT_THAT(compressed(Json::object()), HasSubstr("there must be a group"));
  EXPECT_THAT(compressed({{"a", weights(4)}}, "calibration"),
              HasSubstr("quantization_status is \"calibration\""));
}

TEST(Dialects, AFileBesideConfigJsonIsReadIfThatSaysNothing) {
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      ("quantization_file_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  const auto method = [&](const Json& config) {
    const auto own = parse_quantization(JsonFields(config, ""), "auto", false,
                                        read_quantization_file(folder.string()));
    return own ? own->quant_method : "none";
  };
  EXPECT_EQ(method(Json::object()), "none");
  write("quant_config.json", R"({"w_bit": 4, "q_group_size": 128})");
  EXPECT_EQ(method(Json::object()), "awq");
  write("quantize_config.json", R"({"bits": 4, "group_size": 128})");
  EXPECT_EQ(method(Json::object()), "gptq");
  write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(method(Json::object()), "modelopt");
  EXPECT_EQ(method({{"quantization_config", {{"quant_method", "fp8"}}}}), "fp8");
  write("hf_quant_config.json", R"({"quantization": {"quant_algo": "W4A8_AWQ"}})");
  EXPECT_THAT(user_error([&] { method(Json::object()); }),
              HasSubstr("/hf_quant_config.json: quantization.quant_algo is \"W4A8_AWQ\""));
  write("hf_quant_config.json", "[]");
  EXPECT_THAT(user_error([&] { method(Json::object()); }),
              HasSubstr("/hf_quant_config.json: must be a JSON object"));
  std::filesystem::remove_all(folder);
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
  for (const Json& config :
       {Json{{"quant_method", "awq"}, {"group_size", 32}},
        Json{{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 32}},
        Json{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"desc_act", true}},
        Json{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}},
        Json{{"quant_method", "compressed-tensors"},
             {"format", "pack-quantized"},
             {"ignore", {"lm_head", "re:.*layers.1.*"}},
             {"config_groups", {{"group_0", {{"weights", int4}}}}}}}) {
    const auto quantization = quantization_of(config);
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
