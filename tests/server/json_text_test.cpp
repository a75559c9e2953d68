#include "nanovllm/server/http/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "nanovllm/base/json.h"
#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

std::string escaped(std::string_view text) {
  std::string to = "x";
  append_json_string(to, text);
  return to.substr(1);
}

TEST(JsonText, StringsAreThoseOfDumpJson) {
  std::string bytes;
  for (int c = 0; c < 0x80; ++c) bytes += static_cast<char>(c);
  for (const std::string& text :
       {std::string(), std::string("plain"), bytes, "end\\" + bytes + "\"", std::string("é€😀"),
        std::string(1, '\0'), std::string("\xE2\x80\xA8")})
    EXPECT_EQ(escaped(text), dump_json(text));
}

TEST(JsonText, RandomStringsAreThoseOfDumpJson) {
  std::mt19937 random(1);
  const std::vector<std::string> pieces = {"a", "\n", "\"", "\\", "\x1f", "\x7f", "é", "€", "😀"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t length = random() % 40; length > 0; --length)
      text += pieces[random() % pieces.size()];
    EXPECT_EQ(escaped(text), dump_json(text));
  }
}

TEST(JsonText, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(escaped("a\xC3"), "\"a\uFFFD\"");
  EXPECT_EQ(escaped("\xFF\n\xED\xA0\x80"), "\"\uFFFD\\n\uFFFD\uFFFD\uFFFD\"");
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t length = random() % 20; length > 0; --length) text += static_cast<char>(random());
    EXPECT_NO_THROW(parse_json(escaped(text), "text"));
  }
}

TEST(JsonText, NumbersAreReadBackUnchanged) {
  for (const int64_t value : {int64_t{0}, int64_t{-7}, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    std::string to;
    append_number(to, value);
    EXPECT_EQ(to, std::to_string(value));
  }
  std::string to;
  append_ids(to, std::vector<int32_t>{1, -2, 3});
  append_ids(to, {});
  EXPECT_EQ(to, "[1,-2,3][]");
}

TEST(JsonText, LogprobsAreFinite) {
  const auto written = [](float value) {
    std::string to;
    append_logprob(to, value);
    return to;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {-kInfinity, kInfinity, -1e30f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(written(value), "-9999");
  for (const float value : {0.0f, -0.1f, -1e-20f, -0.0001f, -123.456f, -1e-44f})
    EXPECT_EQ(parse_json(written(value), "x").get<float>(), value);
}

TEST(ApiError, HasOpenAisBody) {
  const ApiError error(400, "n is \"0\"\n", "n");  // control characters of a text are escaped
  EXPECT_EQ(error.body(), R"({"error":{"message":"n is \"0\"\\n","type":"invalid_request_error",)"
                          R"("param":"n","code":null}})");
  const Json body = parse_json(ApiError::unknown_model("x\n\xFF").body(), "body")["error"];
  EXPECT_EQ(body["param"], "model");
  EXPECT_EQ(body["code"], "model_not_found");
  EXPECT_LT(ApiError::unknown_model(std::string(100'000, 'm')).body().size(), 500u);
}

TEST(ApiError, FollowsFromTheStatus) {
  for (const auto& [error, status, type] :
       {std::tuple(ApiError::wrong_key(), 401, "authentication_error"),
        std::tuple(ApiError::unknown_route("GET", "/x"), 404, "not_found_error"),
        std::tuple(ApiError::wrong_method("GET", "/x", "POST"), 405, "invalid_request_error"),
        std::tuple(ApiError::too_large(5), 413, "invalid_request_error"),
        std::tuple(ApiError::queue_full(5), 429, "rate_limit_error"),
        std::tuple(ApiError::shutting_down(), 503, "server_error"),
        std::tuple(ApiError(500, "x"), 500, "server_error")}) {
    EXPECT_EQ(error.status, status);
    EXPECT_EQ(error.type(), type);
    EXPECT_NO_THROW(Json::parse(error.body()));
  }
}

}  // namespace
}  // namespace nanovllm::server
