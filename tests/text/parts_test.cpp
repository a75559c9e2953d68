#include "nanovllm/text/parts.h"

#include <gtest/gtest.h>

#include "nanovllm/base/error.h"

namespace nanovllm {
namespace {

std::string text_of(const std::string& part) { return text_of_part(Json::parse(part)); }
std::string media(const std::string& part) { return media_of(Json::parse(part)).value_or(""); }

TEST(Parts, TextsOfAllApisAreTexts) {
  EXPECT_EQ(text_of(R"("a")"), "a");
  for (const char* type : {"text", "input_text", "output_text", "summary_text"})
    EXPECT_EQ(text_of(std::string(R"({"text": "a", "type": ")") + type + "\"}"), "a");
  EXPECT_EQ(text_of(R"({"type": "text", "text": null})"), "");
  EXPECT_EQ(text_of(R"({"type": "refusal", "refusal": "no"})"), "no");
  EXPECT_EQ(text_of(R"({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]})"), "hm");
}

TEST(Parts, DocumentsMayBeTexts) {
  EXPECT_EQ(
      text_of(R"({"type": "document", "title": "T", "source": {"type": "text", "data": "a"}})"),
      "T\na");
  EXPECT_EQ(text_of(R"({"type": "document", "source": {"type": "content", "content": [
                        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}})"),
            "a\nb");
}

TEST(Parts, UnknownPartsAreTheirJson) {
  EXPECT_EQ(text_of(R"({"type": "tool_reference", "tool_name": "f",
                        "cache_control": {"type": "ephemeral"}})"),
            R"({"type":"tool_reference","tool_name":"f"})");
}

TEST(Parts, MediaHaveNoText) {
  for (const auto& [type, kind] :
       {std::pair("image", "image"), std::pair("image_url", "image"),
        std::pair("input_image", "image"), std::pair("input_audio", "audio"),
        std::pair("video_url", "video"), std::pair("file", "file"), std::pair("input_file", "file"),
        std::pair("document", "file"), std::pair("container_upload", "file")})
    EXPECT_EQ(media(std::string(R"({"type": ")") + type + "\"}"), kind);
  for (const char* type : {"text", "tool_reference", "search_result"})
    EXPECT_EQ(media(std::string(R"({"type": ")") + type + "\"}"), "");
}

TEST(Parts, MediaBecomeATextThatSaysSo) {
  Json messages = Json::parse(R"([{"role": "user", "content": [
      {"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "u"}}]},
      {"role": "user", "content": "a"}, 5, {"role": "user"}])");
  replace_media(messages);
  EXPECT_EQ(messages[0]["content"][1],
            Json::parse(R"({"type": "text", "text": "[image omitted: this model reads text]"})"));
  EXPECT_EQ(messages[1]["content"], "a");
}

TEST(Parts, WhatIsNoPartIsRefused) {
  for (const char* part : {"5", "null", "[]", "{}", R"({"type": 5})", R"({"type": "text"})",
                           R"({"type": "text", "text": 5})"})
    EXPECT_THROW(text_of(part), UserError) << part;
}

}  // namespace
}  // namespace nanovllm
