// Json has the meanings of nlohmann::ordered_json, which is the reference here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {
namespace {

using Reference = nlohmann::ordered_json;

std::string dump(const Reference& json, int indent = -1) {
  return json.dump(indent, ' ', false, Reference::error_handler_t::replace);
}

class RandomJson {
 public:
  explicit RandomJson(uint32_t seed) : random_(seed) {}

  Reference value(int depth = 0) {
    switch (pick(depth < 4 ? 8 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return pick(2) == 0;
      case 2:
        return -pick(1000);
      case 3:
        return std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(pick(3));
      case 4:
        // The digits that the reference gives longer numbers are not always the shortest.
        return std::ldexp(pick(1 << 10) - (1 << 9), pick(40) - 20);
      case 5:
        return text();
      case 6: {
        Reference list = Reference::array();
        for (int i = pick(4); i > 0; --i) list.push_back(value(depth + 1));
        return list;
      }
      default: {
        Reference object = Reference::object();
        for (int i = pick(4); i > 0; --i) object[text()] = value(depth + 1);
        return object;
      }
    }
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<uint32_t>(count)); }
  std::string text() {
    static const std::vector<std::string> kPieces = {
        "a", "\"", "\\", "\n", "\x01", "\x7F", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "/"};
    std::string text;
    for (int i = pick(4); i > 0; --i) text += kPieces[static_cast<size_t>(pick(10))];
    return text;
  }

  std::mt19937 random_;
};

std::string order(std::partial_ordering order) {
  return order < 0 ? "<" : order > 0 ? ">" : order == 0 ? "=" : "none";
}

TEST(JsonValue, RandomValuesAreReadWrittenAndComparedAsByTheReference) {
  RandomJson random(7);
  for (int i = 0; i < 2000; ++i) {
    const Reference a = random.value(), b = random.value();
    const std::string text = dump(a);
    const Json json = Json::parse(text), other = Json::parse(dump(b));
    ASSERT_EQ(json.dump(), text);
    ASSERT_EQ(json.dump(2), dump(a, 2));
    ASSERT_EQ(json.type_name(), std::string(a.type_name()));
    ASSERT_EQ(json.size(), a.size());
    ASSERT_EQ(json.empty(), a.empty());
    ASSERT_TRUE(json == Json(json));
    ASSERT_EQ(json == other, a == b) << text << " and " << dump(b);
    const char* const expected = a < b ? "<" : b < a ? ">" : "=";
    ASSERT_EQ(order(json <=> other), expected) << text << " and " << dump(b);
  }
}

TEST(JsonValue, BracesMakeObjectsOfPairsAndElseArrays) {
  EXPECT_EQ(Json({{"a", 1}, {"b", {{"c", nullptr}}}}).dump(), R"({"a":1,"b":{"c":null}})");
  EXPECT_EQ(Json({"a", 1}).dump(), R"(["a",1])");
  EXPECT_EQ(Json({"a"}).dump(), R"(["a"])");
  EXPECT_EQ(Json({1, 2.5, true, {1}, {{"a", 1}}}).dump(), R"([1,2.5,true,[1],{"a":1}])");
  EXPECT_EQ(Json::array({{"a", 1}}).dump(), R"([["a",1]])");
  EXPECT_EQ(Json(std::vector<int32_t>{1, 2}).dump(), "[1,2]");
  std::string moved = "a text that is longer than what a string holds itself";
  const char* const data = moved.data();
  const Json list = {std::move(moved)};
  EXPECT_EQ(list[0].string().data(), data);  // no copy
}

TEST(JsonValue, MembersAreFoundAddedAndRemoved) {
  Json json;
  json["b"] = 1;
  json["a"]["x"] = "y";
  EXPECT_EQ(json.dump(), R"({"b":1,"a":{"x":"y"}})");
  EXPECT_FALSE(json.emplace("b", 2));
  EXPECT_TRUE(json.emplace("c", 3));
  EXPECT_EQ(json.value("b", 0), 1);
  EXPECT_EQ(json.value("none", "absent"), "absent");
  EXPECT_TRUE(std::as_const(json)["none"].is_null());
  EXPECT_FALSE(json.contains("none"));
  EXPECT_EQ(json.find("none"), json.end());
  EXPECT_EQ(json.find("a").key(), "a");
  EXPECT_EQ(json.erase("a"), 1);
  EXPECT_EQ(json.erase("a"), 0);
  json.update({{"c", 4}, {"d", 5}});
  EXPECT_EQ(json.dump(), R"({"b":1,"c":4,"d":5})");
  std::vector<int> values;
  for (const Json& value : json) values.push_back(value.get<int>());
  EXPECT_THAT(values, ::testing::ElementsAre(1, 4, 5));
}

TEST(JsonValue, OtherValuesAreListsOfThemselvesAndNullIsEmpty) {
  for (const Json& value : {Json("x"), Json(1), Json(true)}) {
    EXPECT_EQ(value.end() - value.begin(), 1);
    for (const Json& itself : value) EXPECT_EQ(&itself, &value);
    EXPECT_EQ(value.find("x"), value.end());
  }
  const Json null;
  EXPECT_EQ(null.begin(), null.end());
}

TEST(JsonValue, ElementsAreInsertedAndErased) {
  Json list;
  for (int i = 0; i < 4; ++i) list.push_back(i);
  list.insert(list.begin() + 1, "x");
  list.erase(0);
  list.erase(list.end() - 1);
  EXPECT_EQ(list.dump(), R"(["x",1,2])");
  EXPECT_EQ(list.front(), "x");
  EXPECT_EQ(list.back(), 2);
  list = list[0];  // a part of itself
  EXPECT_EQ(list, "x");
}

TEST(JsonValue, OnlyNumbersInTextsAreRead) {
  EXPECT_EQ(as_number("5"), 5);
  EXPECT_EQ(as_number(" -0.5e1 "), -5);
  EXPECT_EQ(as_number(5.0).type(), Json::Type::kInteger);
  const std::string deep(1'000'000, '[');
  for (const std::string& text : {deep, deep + std::string(1'000'000, ']'), std::string("[5]"),
                                  std::string("true"), std::string("5x"), std::string()})
    EXPECT_TRUE(as_number(text) == text) << text.substr(0, 10);
}

TEST(JsonValue, WrongTypesAndPlacesAreRefused) {
  const Json text = "x", list = {1, 2};
  EXPECT_THROW(text.get<int>(), std::logic_error);
  EXPECT_THROW(list.string(), std::logic_error);
  EXPECT_THROW(list.at(2), std::logic_error);
  EXPECT_THROW(list.at("x"), std::logic_error);
  EXPECT_THROW(list.items(), std::logic_error);
  EXPECT_THROW(Json(1).get<std::vector<int>>(), std::logic_error);
}

TEST(JsonValue, RealsKeepTheirDigits) {
  for (const double real :
       {0.0, -0.0, 1.0, 0.1, 1e-4, 9.9e-5, 1e14, 1e15, 123456789.125, 5e-324, 1e308}) {
    EXPECT_EQ(Json(real).dump(), Reference(real).dump());
    EXPECT_EQ(Json::parse(Json(real).dump()).get<double>(), real);
  }
  EXPECT_EQ(Json(NAN).dump(), "null");
}

}  // namespace
}  // namespace nanovllm
