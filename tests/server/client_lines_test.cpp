#include "nanovllm/server/conversation/client_lines.h"

#include <gtest/gtest.h>

namespace nanovllm::server {
namespace {

Json without_lines(const std::string& messages) {
  Json json = Json::parse(messages);
  drop_client_lines(json);
  return json;
}

constexpr const char* kUser = R"({"role": "user", "content": "x-anthropic-billing-header: a"})";

TEST(ClientLines, ABlockOfItsOwnGoes) {
  EXPECT_EQ(without_lines(R"([{"role": "system", "content": [
      {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332; cch=1a2b;"},
      {"type": "text", "text": "You are Claude Code."}]}, )" +
                          std::string(kUser) + "]"),
            Json::parse(R"([{"role": "system", "content": [
      {"type": "text", "text": "You are Claude Code."}]}, )" +
                        std::string(kUser) + "]"));
}

TEST(ClientLines, ALineAtTheStartOfATextGoes) {
  EXPECT_EQ(without_lines(R"([{"role": "system", "content":
      "x-anthropic-billing-header: a; b\n\nYou are kind.\nx-anthropic-billing-header: c"}])"),
            Json::parse(R"([{"role": "system", "content":
      "You are kind.\nx-anthropic-billing-header: c"}])"));
}

TEST(ClientLines, AMessageWithNothingElseGoes) {
  const std::string line = R"({"role": "system", "content": "x-anthropic-billing-header: a"}, )";
  EXPECT_EQ(without_lines("[" + line + kUser + "]"), Json::parse(std::string("[") + kUser + "]"));
}

TEST(ClientLines, OtherMessagesStay) {
  for (const std::string& messages :
       {std::string(R"([{"role": "system", "content": ""}])"),
        std::string(R"([{"role": "system", "content": null}])"),
        std::string(R"([{"role": "system", "content": []}])"),
        std::string(R"([{"role": "system", "content": "Say x-anthropic-billing-header: a"}])"),
        "[" + std::string(kUser) + R"(, {"role": "system", "content": "x-anthropic-"}])"})
    EXPECT_EQ(without_lines(messages), Json::parse(messages));
}

}  // namespace
}  // namespace nanovllm::server
