#include "nanovllm/text/grammar/regex/numbers.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "nanovllm/text/grammar/regex/formats.h"
#include "tests/text/grammar_language.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm::grammar {
namespace {

Language number_language(const NumberForm& form) {
  return Language([&](Expressions& e) { return number(e, form, "t"); });
}

std::string number_error(const NumberForm& form) {
  return refusal([&](Expressions& e) { return number(e, form, "#/maximum"); });
}

/// A number as a text with this many digits behind the point, of which `hundredths` tells two.
std::string number_text(int hundredths, int num_digits) {
  const int magnitude = std::abs(hundredths);
  std::string text =
      fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", magnitude / 100, magnitude % 100);
  if (num_digits == 0) return text.substr(0, text.size() - 3);
  return num_digits == 1 ? text.substr(0, text.size() - 1)
                         : text + std::string(num_digits - 2, '0');
}

/// An end of a range in hundredths.
struct TestEnd {
  int hundredths;
  bool exclusive;
};

void check_range(bool integer, const std::optional<TestEnd>& min, const std::optional<TestEnd>& max,
                 int multiple = 0) {
  NumberForm form{.integer = integer};
  if (min) form.min = Bound{number_text(min->hundredths, 2), min->exclusive};
  if (max) form.max = Bound{number_text(max->hundredths, 2), max->exclusive};
  if (multiple != 0) form.multiple_of = number_text(multiple, 2);
  Language language = number_language(form);
  for (int i = -1250; i <= 1250; ++i) {
    bool is_in = true;
    if (min) is_in = is_in && (min->exclusive ? i > min->hundredths : i >= min->hundredths);
    if (max) is_in = is_in && (max->exclusive ? i < max->hundredths : i <= max->hundredths);
    if (multiple != 0) is_in = is_in && i % multiple == 0;
    for (const int num_digits : {0, 1, 2, 3}) {
      if (i % (num_digits == 0 ? 100 : num_digits == 1 ? 10 : 1) != 0) continue;
      const bool expected = is_in && (!integer || num_digits == 0);
      const std::string text = number_text(i, num_digits);
      ASSERT_EQ(language.has(text), expected)
          << text << " min " << (min ? number_text(min->hundredths, 2) : "-")
          << (min && min->exclusive) << " max " << (max ? number_text(max->hundredths, 2) : "-")
          << (max && max->exclusive) << " multiple of " << multiple;
      if (i == 0) {
        ASSERT_EQ(language.has("-" + text), expected) << "-" << text;
      }
      ASSERT_FALSE(language.has((i < 0 ? "-0" : "0") + text.substr(i < 0)))
          << "a leading zero: " << text;
    }
  }
}

TEST(GrammarNumbers, RangesHoldExactlyTheirNumbers) {
  const std::vector<int> ends = {-1200, -1000, -990, -101, -100, -5,  0,    1,   10,
                                 99,    100,   105,  110,  900,  999, 1010, 1234};
  for (const bool integer : {false, true})
    for (const int min : ends)
      for (const int max : ends)
        check_range(integer, TestEnd{min, (min + max) % 2 == 0}, TestEnd{max, max % 3 == 0});
  for (const bool integer : {false, true})
    for (const int end : ends)
      for (const bool exclusive : {false, true}) {
        check_range(integer, TestEnd{end, exclusive}, std::nullopt);
        check_range(integer, std::nullopt, TestEnd{end, exclusive});
        check_range(integer, TestEnd{end, exclusive}, TestEnd{end, false});
        check_range(integer, TestEnd{end, false}, TestEnd{end + 7, exclusive});
      }
}

TEST(GrammarNumbers, MultiplesHoldExactlyTheirNumbers) {
  for (const bool integer : {false, true})
    for (const int multiple :
         {1, 2, 3, 25, 50, 99, 100, 125, 150, 250, 300, 700, 1000, 2000, 2500}) {
      check_range(integer, std::nullopt, std::nullopt, multiple);
      check_range(integer, TestEnd{-333, true}, TestEnd{1000, false}, multiple);
      check_range(integer, TestEnd{100, false}, std::nullopt, multiple);
    }
}

TEST(GrammarNumbers, FormsWithoutBounds) {
  Language integers = number_language({.integer = true}), numbers = number_language({});
  for (const std::string text : {"0", "-0", "7", "-10", "12345678901234567890123"}) {
    EXPECT_TRUE(integers.has(text)) << text;
    EXPECT_TRUE(numbers.has(text)) << text;
  }
  for (const std::string text : {"0.5", "-1.0", "1e5", "1E+05", "-0.00e-7"}) {
    EXPECT_FALSE(integers.has(text)) << text;
    EXPECT_TRUE(numbers.has(text)) << text;
  }
  for (const std::string text :
       {"", "-", "01", "+1", ".5", "1.", "1e", "1e+", "0x1", "--1", "NaN", " 1"}) {
    EXPECT_FALSE(integers.has(text)) << text;
    EXPECT_FALSE(numbers.has(text)) << text;
  }
}

TEST(GrammarNumbers, BoundsAreExact) {
  const auto accepts = [](const std::string& max, const std::string& text) {
    return number_language({.max = Bound{max, false}}).has(text);
  };
  EXPECT_TRUE(accepts("9007199254740993", "9007199254740993"));
  EXPECT_FALSE(accepts("9007199254740993", "9007199254740993.0000000000000000000000001"));
  EXPECT_FALSE(accepts("9007199254740993", "9007199254740994"));
  EXPECT_TRUE(accepts("0.1", "0.1000000000000000000000000000000"));
  EXPECT_FALSE(accepts("0.1", "0.1000000000000000055511151231257827"));
  for (const auto& [bound, below, above] : std::vector<std::array<std::string, 3>>{
           {"1e3", "1000", "1000.1"},
           {"1.5E+2", "150", "151"},
           {"-2.5e-1", "-0.25", "-0.249"},
           {"0e99999999999999999999", "0", "1"},
           {"120e-1", "12", "12.01"},
           {"0.000", "0.0", "0.0001"},
           {"-0", "-0.0", "0.1"},
           {"00012", "12", "13"},
           {"1.7976931348623157e308", "17976931348623157" + std::string(292, '0'),
            "17976931348623158" + std::string(292, '0')},
           {"5e-324", "0." + std::string(323, '0') + "5", "0." + std::string(323, '0') + "6"}}) {
    EXPECT_TRUE(accepts(bound, below)) << bound;
    EXPECT_FALSE(accepts(bound, above)) << bound;
  }
}

TEST(GrammarNumbers, RefusesWhatIsNoNumberOrTooLong) {
  for (const std::string text : {"", "-", "x", "1.", ".5", "1e", "+1", "1 ", "NaN", "1e5x"})
    EXPECT_THAT(number_error({.max = Bound{text, false}}), ::testing::HasSubstr("is not a number"))
        << text;
  for (const std::string text :
       {"1e401", "1e-401", "1e99999999999999999999", "1e-99999999999999999999", "12345e400"})
    EXPECT_THAT(number_error({.max = Bound{text, false}}),
                ::testing::HasSubstr("more than 400 digits"))
        << text;
  EXPECT_THAT(number_error({.max = Bound{std::string(100000, '7'), false}}),
              ::testing::HasSubstr("more than 400 digits"));
  EXPECT_EQ(number_error({.multiple_of = "0"}), "#/maximum: 0 must be greater than 0");
  EXPECT_THAT(number_error({.multiple_of = "-2"}), ::testing::HasSubstr("greater than 0"));
  for (const std::string text : {"1e-11", "2147483648", "1.2345678901", "0.2001", "2001e3"})
    EXPECT_THAT(number_error({.multiple_of = text}), ::testing::HasSubstr("are not supported"));
  EXPECT_THAT(number_error({.integer = true, .multiple_of = "0.123456789"}),
              ::testing::HasSubstr("are not supported"));
  EXPECT_EQ(number_error({.multiple_of = "2000e300"}), "");
}

TEST(GrammarNumbers, SmallAndLargeMultiples) {
  EXPECT_TRUE(number_language({.multiple_of = "0.0001"}).has("0.0075"));
  EXPECT_FALSE(number_language({.multiple_of = "0.0001"}).has("0.00751"));
  EXPECT_TRUE(number_language({.multiple_of = "1e-8"}).has("-12391239123"));
  for (const bool integer : {false, true}) {
    Language language = number_language({.integer = integer, .multiple_of = "86400e2"});
    for (const std::string text : {"0", "-0", "-8640000", "1728000000000000000000000"})
      EXPECT_TRUE(language.has(text)) << text;
    for (const std::string text : {"864000", "00", "86.400000", "8640000.5", "864.0"})
      EXPECT_FALSE(language.has(text)) << text;
    for (const std::string text : {"17280000.0", "0.00"})
      EXPECT_EQ(language.has(text), !integer) << text;
  }
}

// -- Formats.

Language format_language(const std::string& name, Coding coding = Coding::kUtf8) {
  return Language([&](Expressions& e) { return *format(e, name, coding); });
}

TEST(GrammarFormats, AgreeWithTheTestSuiteOfJsonSchema) {
  const std::string path =
      std::string(NANOVLLM_SOURCE_DIR) + "/../shared/goldens/structured/json_schema_suite.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  int num_rows = 0;
  for (const Json& row : read_json_lines(path)) {
    if (row["id"].get<std::string>().find("-format-") == std::string::npos) continue;
    const auto name = row["spec"]["format"].get<std::string>();
    Language language = format_language(name, Coding::kJsonString);
    for (const Json& instance : row["rows"]) {
      auto text = instance[0].get<std::string>();
      if (instance.size() != 2 || !text.starts_with('"')) continue;
      text = text.substr(1, text.size() - 2);
      EXPECT_EQ(language.has(text), instance[1].get<bool>()) << name << " " << text;
      ++num_rows;
    }
  }
  EXPECT_GT(num_rows, 100);
}

TEST(GrammarFormats, DatesAreThoseOfTheCalendar) {
  Language dates = format_language("date"), times = format_language("date-time");
  for (int year = 0; year <= 9999; year += year < 2050 || year % 100 > 95 || year % 100 < 8 ? 1 : 7)
    for (int month = 0; month <= 13; ++month)
      for (int day = 0; day <= 32; day += day == 1 ? 26 : 1) {
        using namespace std::chrono;
        const bool is_date =
            year > 0 && year_month_day(std::chrono::year(year), std::chrono::month(month),
                                       std::chrono::day(day))
                            .ok();
        const std::string text = fmt::format("{:04}-{:02}-{:02}", year, month, day);
        ASSERT_EQ(dates.has(text), is_date) << text;
        if (day == 29) {
          ASSERT_EQ(times.has(text + "T23:59:59.5-23:59"), is_date) << text;
        }
      }
}

TEST(GrammarFormats, AddressesAgreeWithTheSystem) {
  Language v4 = format_language("ipv4"), v6 = format_language("ipv6");
  Random random(5);
  int num_valid = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    const size_t num_parts = 1 + random.below(9);
    for (size_t part = 0; part < num_parts; ++part) {
      if (part > 0 || random.below(8) == 0) text += random.below(6) == 0 ? "::" : ":";
      if (random.below(12) != 0) text += fmt::format("{:x}", random.below(0x10400));
    }
    if (random.below(4) == 0) text += ":1.2.3." + std::to_string(random.below(300));
    if (random.below(8) == 0) text += "::";
    in6_addr address;
    const bool is_valid = inet_pton(AF_INET6, text.c_str(), &address) == 1;
    num_valid += is_valid;
    ASSERT_EQ(v6.has(text), is_valid) << text;
  }
  EXPECT_GT(num_valid, 1000);
  for (int byte = 0; byte < 1100; ++byte) {
    EXPECT_EQ(v4.has(fmt::format("{}.2.{}.255", byte, byte)), byte < 256);
    EXPECT_FALSE(v4.has(fmt::format("0{}.2.3.4", byte)));
  }
}

TEST(GrammarFormats, ATextIsTakenOrNot) {
  const auto check = [](const std::string& name, const std::vector<std::string>& members,
                        const std::vector<std::string>& others) {
    Language language = format_language(name);
    for (const std::string& text : members) EXPECT_TRUE(language.has(text)) << name << " " << text;
    for (const std::string& text : others) EXPECT_FALSE(language.has(text)) << name << " " << text;
  };
  const std::string label(63, 'a'), long_name = label + "." + label + "." + label + ".";
  check("hostname", {"a", "a-b.c1", label, long_name + std::string(61, 'b')},
        {"", "a.", ".a", "a..b", "-a", "a-", label + "a", long_name + std::string(62, 'b'), "a_b",
         "\u00e9"});
  check("email", {"a@b", "a.b+c@x-y.example", "x@[127.0.0.1]", "x@[IPv6:::1]"},
        {"a", "@b", "a@", ".a@b", "a.@b", "a..b@c", "a b@c", "a@b@c", "a@-b"});
  check("duration", {"P1Y2M3DT4H5M6S", "P1Y", "P1Y2M", "PT1H2M", "PT5M6S", "P3W", "P1DT1S"},
        {"", "P", "PT", "P1", "P1YT", "P1W2D", "P1Y3D", "PT1H6S", "P1S", "p1Y", "P1.5D"});
  check("time", {"00:00:00Z", "23:59:59.999z", "12:00:00+14:00"},
        {"23:59:60Z", "24:00:00Z", "12:00:00", "12:00Z", "12:00:00.Z", "12:00:00+24:00",
         "12:00:00+1:00"});
  check("date-time", {"2000-02-29t00:00:00z", "2024-12-31T23:59:59-00:00"},
        {"1900-02-29T00:00:00Z", "2024-12-31 23:59:59Z", "2024-12-31"});
  check("uuid", {"00000000-0000-0000-0000-00000000abCD"},
        {"00000000-0000-0000-0000-00000000abc", "0000000000000000000000000000abcd",
         "g0000000-0000-0000-0000-00000000abcd"});
  check("uri",
        {"a:", "a:b", "http://", "http://a", "http://u:p@h:8/p?q#f", "x://[::1]:80",
         "x://[v1.a:b]/", "file:///etc", "mailto:a@b", "a:/b//c", "a:?", "a:#"},
        {"", "a", "/a", "//a/b", "1a:b", "a b:c", "a:b c", "a:%zz", "http://[::1", "http://h:a",
         "a:#b#c", "a:\u00e9", "http://a@b@c"});
  Expressions e;
  EXPECT_FALSE(format(e, "regex", Coding::kUtf8).has_value());
}

}  // namespace
}  // namespace nanovllm::grammar
