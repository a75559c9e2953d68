#include <gtest/gtest.h>

#include "answer_parser_checks.h"
#include "nanovllm/server/conversation/calls/python_literal.h"

namespace nanovllm::server {
namespace {

using namespace server::testing;

// The examples with these names are those of vLLM's tests of its parsers pythonic and
// llama4_pythonic.
const AnswerParser::Options kPythonic{
    .call_form = CallForm::kPythonic,
    .tools = {"get_weather", "register_user", "do_something_cool", "dotted.name"}};
const std::string kWeather = "get_weather(city='LA', metric='C')";
const std::string kWeatherShown = R"(|get_weather({"city": "LA", "metric": "C"}))";

TEST(AnswerParserPythonic, AListOfCallsIsCalls) {
  EXPECT_EQ(parsed("[" + kWeather + "]", kPythonic), kWeatherShown);
  EXPECT_EQ(parsed("[get_weather()]", kPythonic), "|get_weather({})");
  EXPECT_EQ(parsed("[" + kWeather + ",register_user(name='Doe',age=9)]", kPythonic),
            kWeatherShown + R"(|register_user({"name": "Doe", "age": 9}))");
  EXPECT_EQ(parsed("[ " + kWeather + " ,\n get_weather( ) , ]", kPythonic),
            kWeatherShown + "|get_weather({})");
  EXPECT_EQ(parsed("[dotted.name(a = 1 , b = 2 , )]", kPythonic),
            R"(|dotted.name({"a": 1, "b": 2}))");
}

TEST(AnswerParserPythonic, ValuesAreLiterals) {
  EXPECT_EQ(
      parsed("[register_user(name='John Doe', age=37, address={'city': 'San Francisco', "
             "'state': 'CA'}, role=None, passed_test=True, aliases=['John', 'Johnny'])]",
             kPythonic),
      R"(|register_user({"name": "John Doe", "age": 37, "address": {"city": "San Francisco", )"
      R"("state": "CA"}, "role": null, "passed_test": true, "aliases": ["John", "Johnny"]}))");
  EXPECT_EQ(parsed("[register_user(role=null, passed_test=true, a=false)]", kPythonic),
            R"(|register_user({"role": null, "passed_test": true, "a": false}))");
  EXPECT_EQ(
      parsed("[do_something_cool(additional_data={}), do_something_cool(steps=[])]", kPythonic),
      R"(|do_something_cool({"additional_data": {}})|do_something_cool({"steps": []}))");
  EXPECT_EQ(
      parsed(R"([get_weather(city='Martha\'s Vineyard', metric='\"cool units\"')])", kPythonic),
      R"(|get_weather({"city": "Martha's Vineyard", "metric": "\"cool units\""}))");
  EXPECT_EQ(parsed(R"([get_weather(city="], )('[", n=-1.5)])", kPythonic),
            R"(|get_weather({"city": "], )('[", "n": -1.5}))");
}

TEST(AnswerParserPythonic, TagsOfLlamaMayBeAroundIt) {
  const std::string list = "[" + kWeather + ", get_weather()]";
  const std::string shown = kWeatherShown + "|get_weather({})";
  EXPECT_EQ(parsed("<|python_start|>" + list + "<|python_end|>", kPythonic), shown);
  EXPECT_EQ(parsed("I look.\n<|python_start|> " + list + " <|python_end|>\nSo", kPythonic),
            "I look.\nSo" + shown);
  EXPECT_EQ(parsed("<|python_start|>" + list, kPythonic), shown);
  expect_is_content("<|python_start|>print(1)<|python_end|>", kPythonic);
}

TEST(AnswerParserPythonic, TextMayBeAroundIt) {
  EXPECT_EQ(parsed("A [" + kWeather + "] B\n[get_weather()]\n", kPythonic),
            "A B" + kWeatherShown + "|get_weather({})");
}

TEST(AnswerParserPythonic, WhatIsNotACallIsContent) {
  for (const char* text : {"How can I help you today?",
                           "[get_weather]",
                           "[get_weather](http://a.b/c?d=(e))",
                           "get_weather(city='LA')",
                           "[other(a=1)]",
                           "[get_weather('LA')]",
                           "[get_weather(city=LA)]",
                           "[get_weather(city='LA\n')]",
                           "[get_weather(city=1, city=2)]",
                           "[get_weather(city=f(1))]",
                           "[get_weather(**a)]",
                           "[get_weather(a=1), other()]",
                           "[get_weather(a=1), 2]",
                           "[get_weather(a=1) is a call]",
                           "[get_weather(a=[1)]",
                           "[get_weather (a=1)]",
                           "[1, 2]",
                           "[]",
                           "[",
                           "[[get_weather(a=1]]",
                           "[get_weather(a=1e999)]",
                           "[get_weather(a=0x1f)]",
                           "hello world[A(A=\t)A(A=,\t)A(A=,\t",
                           "[get_weather(=1)]",
                           "[get_weather(1=1)]",
                           "<|python_start|>",
                           "<|python_start|>get_weather()<|python_end|>",
                           "<|python_sta"})
    expect_is_content("a \n" + std::string(text), kPythonic);
}

TEST(AnswerParserPythonic, ABrokenOneDoesNotHideTheNext) {
  for (const char* broken :
       {"[", "[get_weather", "[get_weather(", "[get_weather(city='", "[1, 2]",
        "[get_weather(city='LA'", "[other(a=1)]", "[get_weather(a=1), other()]", "[get_weather]",
        "<|python_start|>", "[get_weather(a=["})
    EXPECT_EQ(parsed(std::string(broken) + "\nx [get_weather()]", kPythonic),
              std::string(broken) + "\nx|get_weather({})")
        << broken;
}

TEST(AnswerParserPythonic, CompleteCallsOfAListThatIsCutOffAreCalls) {
  EXPECT_EQ(parsed("[" + kWeather, kPythonic), kWeatherShown);
  EXPECT_EQ(parsed("[" + kWeather + ", ", kPythonic), kWeatherShown);
  EXPECT_EQ(parsed("a\n[" + kWeather + ", get_weather(city='", kPythonic),
            "a, get_weather(city='" + kWeatherShown);
  EXPECT_EQ(parsed("[" + kWeather + ", get_weat", kPythonic), ", get_weat" + kWeatherShown);
  for (size_t len = 0; len < kWeather.size(); ++len)
    expect_is_content("a \n[" + kWeather.substr(0, len), kPythonic);
}

TEST(AnswerParserPythonic, OnlyTheFirstCallIsDeliveredIfTheClientWantsNoMore) {
  AnswerParser::Options options = kPythonic;
  options.parallel_calls = false;
  EXPECT_EQ(parsed("[" + kWeather + ", get_weather()]", options), kWeatherShown);
}

TEST(AnswerParserPythonic, NumbersOfAnyLengthKeepTheirDigits) {
  EXPECT_EQ(parsed("[get_weather(a=12345678901234567890123, b=1_000, c=.5, d=1.)]", kPythonic),
            R"(|get_weather({"a": 12345678901234567890123, "b": 1000, "c": 0.5, "d": 1.0}))");
}

// What Python 3.11 prints for json.dumps(ast.literal_eval(literal), ensure_ascii=False).
constexpr std::pair<const char*, const char*> kLiterals[] = {
    {R"('LA')", R"("LA")"},
    {R"("it\'s")", R"("it's")"},
    {R"('say \"hi\"')", R"("say \"hi\"")"},
    {R"('a\nb\t\\')", R"("a\nb\t\\")"},
    {R"('\x41\u00e9\U0001f600\101')", R"("Aé😀A")"},
    {R"('\d')", R"("\\d")"},
    {R"('é😀')", R"("é😀")"},
    {R"('')", R"("")"},
    {R"('{[(')", R"("{[(")"},
    {"1", "1"},
    {"-1", "-1"},
    {"+1", "1"},
    {"0", "0"},
    {"1_000", "1000"},
    {"1.5", "1.5"},
    {"-.5", "-0.5"},
    {"1.", "1.0"},
    {"1e5", "100000.0"},
    {"1E-3", "0.001"},
    {"True", "true"},
    {"False", "false"},
    {"None", "null"},
    {"[]", "[]"},
    {"[1, 'a', None]", R"([1, "a", null])"},
    {"[1,]", "[1]"},
    {"{}", "{}"},
    {"{'a': {'b': [True]}, 2: 3, None: 4, 'x': -0.5}",
     R"({"a": {"b": [true]}, "2": 3, "null": 4, "x": -0.5})"},
    {"  [ 1 ,\n 2 ]  ", "[1, 2]"}};

TEST(PythonLiteral, BecomesTheJsonThatPythonWrites) {
  for (const auto& [literal, json] : kLiterals) {
    const auto made = json_of_python(literal);
    ASSERT_TRUE(made) << literal;
    EXPECT_EQ(Json::parse(*made), Json::parse(json)) << literal;
  }
}

TEST(PythonLiteral, TwoSurrogatesAreOneCharacter) {
  EXPECT_EQ(json_of_python(R"('\ud83d\ude00')"), R"("😀")");
  EXPECT_EQ(json_of_python(R"('\ud83d')"), "\"\uFFFD\"");
}

TEST(PythonLiteral, OtherTextIsNone) {
  for (const char* text :
       {"",      " ",     "a",       "1 2",     "'a' 'b'", "'a",      "[1",
        "[1 2]", "{'a'}", "{'a': }", "{[]: 1}", "(1, 2)",  "01",      "1__0",
        "1_",    "0x1f",  "1j",      "--1",     "'\\x4'",  "'\\u12'", "'\\U00110000'",
        "nan",   "inf",   "1e999",   "-",       ".",       "e5",      "1e",
        "b'a'",  "f'a'",  "'a\nb'",  "[,]",     "{,}",     "1 + 1",   "lambda: 1",
        "[1,,2]"})
    EXPECT_EQ(json_of_python(text), std::nullopt) << text;
  EXPECT_TRUE(json_of_python(std::string(100, '[') + std::string(100, ']')));
  EXPECT_FALSE(json_of_python(std::string(101, '[') + std::string(101, ']')));
  EXPECT_FALSE(json_of_python(std::string(1'000'000, '[')));
}

}  // namespace
}  // namespace nanovllm::server
