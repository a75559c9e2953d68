#include "nanovllm/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "nanovllm/checkpoint/checkpoint.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::map<std::string, SafetensorsEntry> parse_file(std::string_view file, const std::string& path) {
  return parse_safetensors(file, file.size(), path);
}

/// The error for a file with this header and `data_bytes` bytes of data. It must begin with the
/// name of the file.
std::string header_error(std::string_view header, size_t data_bytes) {
  const std::string file = safetensors_file(header, std::string(data_bytes, '\0'));
  const std::string text = user_error([&] { parse_file(file, "x.safetensors"); });
  EXPECT_THAT(text, StartsWith("x.safetensors: "));
  return text;
}

std::string length_error(uint64_t length, size_t rest) {
  std::string file(sizeof length + rest, ' ');
  std::memcpy(file.data(), &length, sizeof length);
  return user_error([&] { parse_file(file, "x.safetensors"); });
}

constexpr const char* kEntry = R"("dtype":"F32","shape":[2],"data_offsets":)";

TEST(Safetensors, ReadsAHeader) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}   )";
  const auto entries = parse_file(safetensors_file(header, std::string(16, '\0')), "x");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries.at("a").dtype, "F32");
  EXPECT_TRUE(entries.at("a").shape.empty());
  EXPECT_EQ(entries.at("a").offset, 8 + header.size());
  EXPECT_EQ(entries.at("b").dtype, "BF16");
  EXPECT_THAT(entries.at("b").shape, ElementsAre(2, 3));
  EXPECT_EQ(entries.at("b").offset, 8 + header.size() + 4);
  EXPECT_EQ(entries.at("b").bytes, 12u);
  EXPECT_EQ(entries.at("none").bytes, 0u);
  EXPECT_TRUE(parse_file(safetensors_file("{}", ""), "x").empty());
}

TEST(Safetensors, RefusesTextAfterTheHeadersJson) {
  EXPECT_THAT(header_error(std::string_view("{}\0", 3), 0), HasSubstr("a NUL at byte 2"));
  EXPECT_THAT(header_error("{} x", 0), HasSubstr("not valid JSON at byte 4"));
}

// Regression 33: what a header can claim.
TEST(Safetensors, RefusesAHeaderLengthThatTheFileDoesNotHave) {
  for (const uint64_t length : {UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 8, uint64_t{1} << 63,
                                uint64_t{1} << 32, uint64_t{17}})
    EXPECT_THAT(length_error(length, 16),
                AllOf(StartsWith("x.safetensors: "), HasSubstr(std::to_string(length))));
  EXPECT_THAT(length_error(16, 16), StartsWith("x.safetensors: not a safetensors file"));
  EXPECT_THAT(length_error(0, 16), StartsWith("x.safetensors: not a safetensors file"));
  for (const size_t size : {0, 1, 7})
    EXPECT_THAT(user_error([&] { parse_file(std::string(size, 'x'), "x.safetensors"); }),
                HasSubstr("x.safetensors: not a safetensors file"));
  EXPECT_THAT(user_error([] {
                parse_file("version https://git-lfs.github.com/spec/v1\n", "x.safetensors");
              }),
              HasSubstr("x.safetensors: a Git LFS pointer"));
}

TEST(Safetensors, RefusesAHugeHeader) {
  const std::string file = safetensors_file(std::string(100'000'001, ' '), "");
  EXPECT_THAT(user_error([&] { parse_file(file, "x.safetensors"); }),
              HasSubstr("a header of 100000001 bytes"));
}

TEST(Safetensors, RefusesOffsetsThatOverlapOrLeaveTheFile) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{)") + kEntry + first + R"(},"b":{)" + kEntry + second + "}}";
  };
  EXPECT_THAT(header_error(two("[0,8]", "[4,12]"), 12), HasSubstr("tensor \"b\" overlaps"));
  EXPECT_THAT(header_error(two("[0,8]", "[0,8]"), 8), HasSubstr("overlaps"));
  EXPECT_THAT(header_error(two("[0,8]", "[12,20]"), 20),
              HasSubstr("4 bytes before tensor \"b\" belong to no tensor"));
  EXPECT_THAT(header_error(two("[4,12]", "[12,20]"), 20), HasSubstr("4 bytes before tensor \"a\""));
  EXPECT_THAT(header_error(two("[0,8]", "[8,16]"), 20), HasSubstr("its last 4 bytes"));
  EXPECT_THAT(
      header_error(two("[0,8]", "[8,16]"), 15),
      AllOf(HasSubstr("tensor \"b\""), HasSubstr("bytes 8 to 16"), HasSubstr("incomplete")));
  EXPECT_THAT(header_error(two("[0,8]", "[18446744073709551608,18446744073709551615]"), 8),
              AllOf(HasSubstr("tensor \"b\""), HasSubstr("data_offsets")));
  EXPECT_THAT(header_error(two("[0,8]", "[9223372036854775800,9223372036854775807]"), 8),
              HasSubstr("tensor \"b\""));
  EXPECT_THAT(header_error(two("[8,0]", "[8,16]"), 16), HasSubstr("tensor \"a\""));
}

TEST(Safetensors, RefusesSizesThatDoNotAgree) {
  const auto one = [](const std::string& dtype, const std::string& shape) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,8]}})";
  };
  EXPECT_NO_THROW(parse_file(safetensors_file(one("F32", "[2]"), std::string(8, 0)), "x"));
  EXPECT_THAT(header_error(one("F32", "[3]"), 8),
              HasSubstr("tensor \"a\": its data have 8 bytes; dtype and shape require 12"));
  EXPECT_THAT(header_error(one("F16", "[2]"), 8), HasSubstr("require 4"));
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807,2]",
                            "[4611686018427387905]", "[2147483648,2147483648,2147483648]"})
    EXPECT_THAT(header_error(one("F32", shape), 8),
                HasSubstr("tensor \"a\": its shape has more elements"));
  EXPECT_THAT(header_error(one("F31", "[2]"), 8), HasSubstr("tensor \"a\": unknown dtype \"F31\""));
  for (const char* shape :
       {"[-2]", "[2.0]", "[\"2\"]", "2", "null", "{}", "[[2]]", "[18446744073709551615]"})
    EXPECT_THAT(header_error(one("F32", shape), 8), HasSubstr("tensor \"a\": shape must be"));
}

TEST(Safetensors, RefusesEntriesOfTheWrongForm) {
  EXPECT_THAT(header_error(R"({"a":3})", 0), HasSubstr("tensor \"a\" must be an object"));
  EXPECT_THAT(header_error(R"({"a":{}})", 0), HasSubstr("tensor \"a\": dtype"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,0]}})", 0),
              HasSubstr("tensor \"a\": dtype"));
  for (const char* offsets : {"[0]", "[0,8,8]", "8", "[0,-8]", "[0,8.0]", "[true,8]"})
    EXPECT_THAT(header_error(std::string(R"({"a":{)") + kEntry + offsets + "}}", 8),
                HasSubstr("tensor \"a\": data_offsets"));
  EXPECT_THAT(header_error(R"([1,2])", 0), HasSubstr("its header is no JSON object"));
  EXPECT_THAT(header_error("", 0), HasSubstr("its header is no JSON object"));
  EXPECT_THAT(header_error(R"({"a":1e999})", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{\"a\xff\":1}", 0), HasSubstr("not valid JSON"));
}

TEST(Safetensors, RefusesANameTwice) {
  const std::string entry = std::string("{") + kEntry + "[0,8]}";
  EXPECT_THAT(header_error(R"({"a":)" + entry + R"(,"a":)" + entry + "}", 8),
              HasSubstr("the name \"a\" occurs twice"));
  EXPECT_THAT(header_error(R"({"a":)" + entry + R"(,"\u0061":)" + entry + "}", 8),
              HasSubstr("the name \"a\" occurs twice"));
  EXPECT_THAT(header_error(R"({"a":{"shape":[2],)" + std::string(kEntry) + "[0,8]}}", 8),
              HasSubstr("the name \"shape\" occurs twice"));
}

TEST(Safetensors, RefusesDeepNesting) {
  EXPECT_THAT(header_error(R"({"a":)" + std::string(1'000'000, '['), 0),
              HasSubstr("must be an object"));
  for (const char* place : {R"({"__metadata__":)", R"({"a":{"x":)"})
    EXPECT_THAT(header_error(place + std::string(1'000'000, '['), 0),
                HasSubstr("header: JSON nested deeper"));
  std::string deep = "{}";
  for (int i = 0; i < 10000; ++i) deep = R"({"a":)" + deep + "}";
  EXPECT_THAT(header_error(deep, 0), HasSubstr("nested deeper"));
}

TEST(Safetensors, KeepsAHostileNameInOneShortLine) {
  const std::string name = "line\\nbreak" + std::string(10000, 'x');
  EXPECT_THAT(header_error("{\"" + name + "\":3}", 0), HasSubstr("line\\nbreak"));
}

TEST(Safetensors, ReadsTwentyThousandTensors) {
  std::string header = "{";
  for (int i = 0; i < 20000; ++i)
    header += fmt::format(R"({}"model.layers.{}.weight":{{"dtype":"U8","shape":[1],)"
                          R"("data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
  header += "}";
  const auto entries = parse_file(safetensors_file(header, std::string(20000, 0)), "x");
  EXPECT_EQ(entries.size(), 20000u);
  EXPECT_EQ(entries.at("model.layers.19999.weight").offset, 8 + header.size() + 19999);
}

// Without limits, each of these would take gigabytes and a minute.
TEST(Safetensors, BoundsNumbersOfTensorsSizesNamesAndValues) {
  std::string many = "{";
  for (int i = 0; i <= 500'000; ++i)
    many += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        i == 0 ? "" : ",", i);
  EXPECT_THAT(header_error(many + "}", 0), HasSubstr("more than 500000 tensors"));

  std::string zeros = "0";
  for (int i = 0; i < 64; ++i) zeros += ",0";
  EXPECT_THAT(header_error(R"({"a":{"shape":[)" + zeros + "]}}", 0),
              HasSubstr("tensor \"a\": a list of more than 64 sizes"));
  EXPECT_THAT(header_error(R"({"a":{"data_offsets":[)" + zeros + "]}}", 0),
              HasSubstr("tensor \"a\": a list of more than 64 sizes"));
  EXPECT_THAT(header_error("{\"" + std::string(5000, 'x') + "\":{}}", 0),
              HasSubstr("5000 bytes; at most 4096"));

  std::string values = "0";
  for (int i = 0; i < 6'000'000; ++i) values += ",0";
  for (const char* place : {R"({"__metadata__":{"x":[)", R"({"a":{"x":[)"})
    EXPECT_THAT(header_error(place + values + "]}}", 0), HasSubstr("names and values"));
}

TEST(Safetensors, BoundsTheNamesAndValuesOfAnIndex) {
  const auto error = [](const std::string& text) {
    return user_error([&] { parse_sorted_json(text, "index", 2 * kMaxTensors + 1000); });
  };
  std::string names, values = "0";
  for (int i = 0; i < 600'000; ++i) names += fmt::format(R"({}"{}":"f")", i == 0 ? "" : ",", i);
  for (int i = 0; i < 1'100'000; ++i) values += ",0";
  EXPECT_THAT(error(R"({"weight_map":{)" + names + "}}"), HasSubstr("index: more than 1001000"));
  EXPECT_THAT(error(R"({"x":[)" + values + "]}"), HasSubstr("index: more than 1001000"));
}

TEST(Safetensors, IgnoresUnknownFields) {
  const std::string header =
      R"({"__metadata__":{"a":{"dtype":[1,{"shape":2}]},"shape":7,"x":[null,true,-1,0.5,"s"]},)"
      R"("a":{"x":[[1],{"dtype":3}],"dtype":"U8","y":null,"shape":[3],"data_offsets":[0,3],"z":2}})";
  const auto entries = parse_file(safetensors_file(header, "abc"), "x");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries.at("a").bytes, 3u);
}

const std::vector<TestTensor> kTwo = {{"a", "F32", {2}, {1, 2}}, {"b", "BF16", {1, 2}, {3, 4}}};

std::vector<char> bytes_of(const WeightRows& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.num_rows()) * tensor.row_bytes());
  tensor.read(0, tensor.num_rows(), bytes.data());
  return bytes;
}

float element(const WeightRows& tensor, size_t index) {
  const std::vector<char> bytes = bytes_of(tensor);
  if (tensor.dtype() == DType::kF32) return reinterpret_cast<const float*>(bytes.data())[index];
  return bf16_to_f32(reinterpret_cast<const uint16_t*>(bytes.data())[index]);
}

std::string checkpoint_error(const TempFolder& folder) {
  return user_error([&] { Checkpoint{folder.path()}; });
}

TEST(Checkpoint, TakesTensorsOfASingleFile) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_file(kTwo));
  Checkpoint checkpoint(folder.path());
  const WeightRows a = checkpoint.take("a", {2});
  EXPECT_EQ(a.num_rows(), 2);
  EXPECT_EQ(a.num_columns(), 1);
  EXPECT_EQ(a.dtype(), DType::kF32);
  EXPECT_EQ(element(a, 1), 2);
  const auto none = [](const std::string&) { return false; };
  EXPECT_THAT(user_error([&] { checkpoint.require_all_taken(none); }),
              AllOf(HasSubstr("model.safetensors: tensor \"b\" does not belong")));
  EXPECT_NO_THROW(checkpoint.require_all_taken([](const std::string& n) { return n == "b"; }));
  const WeightRows b = checkpoint.take("b", {1, 2});
  EXPECT_EQ(b.num_columns(), 2);
  EXPECT_EQ(element(b, 1), 4);
  EXPECT_NO_THROW(checkpoint.require_all_taken(none));
}

TEST(Checkpoint, TensorsOutliveIt) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_file(kTwo));
  const WeightRows a = Checkpoint(folder.path()).take("a", {2});
  EXPECT_EQ(element(a, 0), 1);
}

TEST(Checkpoint, ReadsRowsAndColumnsInPlaces) {
  const TempFolder folder;
  std::vector<float> values(5 * 7);
  std::iota(values.begin(), values.end(), 0.0f);
  folder.write("model.safetensors", safetensors_file({{"a", "F32", {5, 7}, values}}));
  const WeightRows whole = Checkpoint(folder.path()).take("a", {5, 7});
  const WeightRows part =
      whole.part({1, 3}, {2, 4}).part({1, 2}, {1, 3});  // rows 2 3, columns 3 4 5
  ASSERT_EQ(part.num_rows(), 2);
  ASSERT_EQ(part.row_bytes(), 12u);
  float row[3];
  part.read(1, 1, row);
  EXPECT_THAT(row, ::testing::ElementsAre(24, 25, 26));
  EXPECT_EQ(element(part, 0), 17);
}

// Regression 33: one tensor.
TEST(Checkpoint, NamesTheTensorThatDoesNotFit) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file(R"({"c":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                R"("a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                                std::string(12, 0)));
  Checkpoint checkpoint(folder.path());
  EXPECT_THAT(user_error([&] { checkpoint.take("a", {3}); }),
              HasSubstr("model.safetensors: tensor \"a\" has shape [2]; config.json requires [3]"));
  EXPECT_THAT(user_error([&] { checkpoint.take("a", {2, 1}); }), HasSubstr("[2, 1]"));
  EXPECT_THAT(user_error([&] { checkpoint.take("c", {4}); }),
              HasSubstr("tensor \"c\" has dtype F8_E4M3; it must be BF16, F16 or F32"));
  EXPECT_THAT(user_error([&] { checkpoint.take("d", {4}); }),
              HasSubstr(folder.path() + ": tensor \"d\" is missing"));
}

TEST(Checkpoint, ReadsTheTensorsOfAnUnalignedFile) {
  const TempFolder folder;
  const float values[2] = {1.5f, -2};
  std::string header = std::string(R"({"a":{)") + kEntry + "[0,8]}}";
  header.resize(header.size() / 8 * 8 + 8 + 1, ' ');  // data at an odd address
  folder.write("model.safetensors",
               safetensors_file(header, {reinterpret_cast<const char*>(values), 8}));
  const WeightRows a = Checkpoint(folder.path()).take("a", {2});
  EXPECT_EQ(element(a, 0), 1.5f);
  EXPECT_EQ(element(a, 1), -2);
}

// Regression 33: folders without safetensors.
TEST(Checkpoint, NamesTheFormatOfAFolderWithoutSafetensors) {
  const TempFolder folder;
  EXPECT_THAT(checkpoint_error(folder), HasSubstr(folder.path() + ": no weights"));
  folder.write("pytorch_model.bin", "x");
  EXPECT_THAT(checkpoint_error(folder),
              AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("safetensors files are needed")));
}

// Regression 33: a truncated file.
TEST(Checkpoint, RefusesATruncatedFileAtEveryLength) {
  const TempFolder folder;
  const std::string whole = safetensors_file(kTwo);
  for (size_t length = 0; length < whole.size(); ++length) {
    folder.write("model.safetensors", whole.substr(0, length));
    EXPECT_THAT(checkpoint_error(folder), StartsWith(folder.path("model.safetensors") + ": "));
  }
}

// Regression 33: the index.
TEST(Checkpoint, NamesWhatIsWrongWithAnIndex) {
  const TempFolder folder;
  const auto error_of_index = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return checkpoint_error(folder);
  };
  folder.write("1.safetensors", safetensors_file({kTwo[0]}));
  folder.write("2.safetensors", safetensors_file({kTwo[1]}));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  Checkpoint good(folder.path());
  EXPECT_EQ(element(good.take("a", {2}), 1), 2);
  EXPECT_NO_THROW(good.take("b", {1, 2}));

  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":"1.safetensors","b":"3.safetensors"}})"),
              HasSubstr("index.json: shard \"3.safetensors\" is missing"));
  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":"1.safetensors","c":"2.safetensors"}})"),
              AllOf(HasSubstr("2.safetensors: tensor \"c\" is missing"), HasSubstr("index.json")));
  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})"),
              HasSubstr("2.safetensors: tensor \"a\" is missing"));
  for (const char* name : {R"("../1.safetensors")", R"("/etc/passwd")", R"("")", "3", "null",
                           R"("1.safetensors\u0000")"})
    EXPECT_THAT(error_of_index(std::string(R"({"weight_map":{"a":)") + name + "}}"),
                HasSubstr("index.json: tensor \"a\": its file must be a file name"));
  for (const char* index : {"{}", "[]", R"({"weight_map":{}})", R"({"weight_map":[]})"})
    EXPECT_THAT(error_of_index(index), HasSubstr("index.json: weight_map must"));
  EXPECT_THAT(error_of_index(""), HasSubstr("index.json: not valid JSON"));
  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
              HasSubstr("index.json: the name \"a\" occurs twice"));

  folder.write("2.safetensors", safetensors_file(kTwo));
  EXPECT_THAT(
      error_of_index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"),
      AllOf(HasSubstr("2.safetensors: tensor \"a\" is also in"), HasSubstr("1.safetensors")));
}

}  // namespace
}  // namespace nanovllm
