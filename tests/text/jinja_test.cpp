#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/base/error.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/jinja/text.h"
#include "tests/text/tokenizer_files.h"

// The template language. jinja_cases.jsonl, which make_jinja_cases.py writes, has our own templates
// and the results of Jinja2 3.1.6, or null if it raises. `error` is our own message for these.
namespace nanovllm {
namespace {

using testing::HasSubstr;

std::string render(const std::string& source, const Json& context = Json::object()) {
  return ChatTemplate(source, Json::object(), "template").render(context);
}

std::string template_error(const std::string& source, const Json& context = Json::object()) {
  try {
    return "rendered " + render(source, context);
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Jinja, RendersWhatJinja2Renders) {
  const auto rows =
      read_json_lines(std::string(NANOVLLM_SOURCE_DIR) + "/tests/text/jinja_cases.jsonl");
  ASSERT_GT(rows.size(), 370);
  for (const Json& row : rows) {
    const std::string& source = row["template"].string();
    if (row.contains("error")) {
      EXPECT_EQ(template_error(source, row["context"]), row["error"].get<std::string>());
    } else if (row["expected"].is_null()) {
      EXPECT_THROW(render(source, row["context"]), UserError) << source;
    } else {
      EXPECT_EQ(render(source, row["context"]), row["expected"].get<std::string>()) << source;
    }
  }
}

TEST(Jinja, RendersThirdPartyCases) {
  const std::string path = kSharedData + "/conformance/jinja_small.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& row : read_json_lines(path))
    EXPECT_EQ(render(row["template"].string(), row["context"]), row["expected"].get<std::string>())
        << row["name"];
}

TEST(Jinja, ErrorsNameLineAndColumn) {
  EXPECT_EQ(template_error("{{ 1 +* 2 }}"),
            "template, line 1, column 7: expected an expression, got '*'");
  EXPECT_EQ(template_error("a\n{% if x %}\nb"),
            "template, line 3, column 2: expected {% elif %} or {% else %} or {% endif %}, got the "
            "end of the template");
  EXPECT_EQ(template_error("ä\nö {{ x.y }}"), "template, line 2, column 8: 'x' is undefined");
  EXPECT_EQ(template_error("{% for m in messages %}\n  {{ m.a.b }}\n{% endfor %}",
                           {{"messages", {{{"a", nullptr}}, Json::object()}}}),
            "template, line 2, column 10: 'dict object' has no attribute 'a'");
  EXPECT_EQ(template_error("\n\n   {{ raise_exception('no ' ~ role) }}", {{"role", "tool"}}),
            "template, line 3, column 22: no tool");
  // What a message brings may have any character; a NUL would end the text.
  EXPECT_EQ(template_error("{{ raise_exception('no ' ~ role ~ '!') }}",
                           {{"role", std::string("a\0b\n", 4)}}),
            "template, line 1, column 19: no a\\x00b\\n!");
  EXPECT_EQ(template_error("{{ {}[role] + 1 }}", {{"role", std::string("a\0b", 3)}}),
            "template, line 1, column 13: 'dict object' has no attribute 'a\\x00b'");
  EXPECT_EQ(template_error("{% macro f(x) %}\n{{ x + 1 }}{% endmacro %}\n{{ f('a') }}"),
            "template, line 2, column 6: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(template_error("{{ 'a'|nope }}"), "template, line 1, column 8: no filter named 'nope'");
  EXPECT_EQ(template_error("{% include 'x' %}"),
            "template, line 1, column 4: 'include' is not supported: a chat template is one file");
  EXPECT_EQ(template_error("{% do x %}"), "template, line 1, column 4: unknown tag 'do'");
  EXPECT_EQ(template_error("\xFF"), "template: byte 1 (0xff) is not valid UTF-8");
}

struct Refused {
  const char* source;
  const char* error;
};

// Jinja2 renders all of these.
TEST(Jinja, WhatIsNotSupportedEndsInAnError) {
  const Refused cases[] = {
      {"{{ [1][] }}", "column 8: expected an expression, got ']'"},
      {"{{ [1][1.5:] }}", "column 7: slice indices must be integers or None, not float"},
      {"{{ '\\ud800' }}", "column 5: a bad character escape"},
      {"{{ range(3)|string }}", "column 13: a value of type 'range' cannot be printed: use |list"},
      {"{{ [1]|map('abs')|string }}",
       "column 19: a value of type 'generator' cannot be printed: use |list"},
      // integers of more than 128 bits
      {"{{ 99999999999999999999 }}", "column 4: an integer above 64 bits"},
      {"{{ 2 ** 126 + 2 ** 126 }}", "column 13: an integer does not fit into 128 bits"},
      {"{{ -(2 ** 126) - 2 ** 126 - 1 }}", "column 27: an integer does not fit into 128 bits"},
      {"{{ 2 ** 126 * 3 }}", "column 13: an integer does not fit into 128 bits"},
      {"{{ 3 ** 99 }}", "column 6: an integer does not fit into 128 bits"},
      {"{{ ('9' * 39)|int }}", "column 15: an integer does not fit into 128 bits"},
      {"{{ 1e39|int }}", "column 9: cannot convert 1e+39 to an integer"},
      {"{{ '%d' % 1e39 }}",
       "column 9: the format 'd' is unknown or does not fit a value of type 'float'"},
      // what would take too much memory
      {"{{ strftime_now('a' * 300) }}", "column 16: strftime_now: the format is too long"},
      {"{{ ('a ' * 1000001).split() }}", "column 26: a string splits into more than 1000000 parts"},
  };
  for (const Refused& refused : cases)
    EXPECT_EQ(template_error(refused.source), std::string("template, line 1, ") + refused.error);
}

TEST(Jinja, HostileTemplatesEndInAnError) {
  const Refused cases[] = {
      // endless work
      {"{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
       "more than"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ 'ab' in t }}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99) %}{{ t.rfind('b' ~ 'a' * 500000) }}{% "
       "endfor %}",
       "steps"},
      {"{{ range(99999)|unique|list|length }}", "steps"},
      {"{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor "
       "%}{{ n.x }}",
       "steps"},
      {"{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor "
       "%}{{ n.x|tojson }}",
       "steps"},
      // work without a result: reading, calling, looking up
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t.islower() }}{% endfor %}",
       "steps"},
      {"{% set t = 'A' * 1000000 %}{% for i in range(99999) %}{{ t.isupper() }}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t is lower }}{% endfor %}",
       "bytes"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t.startswith(t) }}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t.endswith((t, t)) }}{% endfor %}",
       "steps"},
      {"{% set t = '0' * 1000000 %}{% for i in range(99999) %}{{ t|int }}{% endfor %}", "steps"},
      {"{% set t = '0' * 1000000 %}{% for i in range(99999) %}{{ t|float }}{% endfor %}", "steps"},
      {"{% set t = '{' ~ '0' * 1000000 ~ '}' %}{% for i in range(99999) %}{{ t.format(1) }}{% "
       "endfor %}",
       "steps"},
      {"{% set t = '0' * 1000000 %}{% for i in range(99999) %}{{ [[1]]|map(attribute=t)|list }}{% "
       "endfor %}",
       "bytes"},
      {"{% set t = '0,' * 100000 %}{% for i in range(99999) %}{{ [[1]]|sort(attribute=t)|list }}{% "
       "endfor %}",
       "bytes"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t.replace('a', '') }}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ 'x'[t] is defined }}{% endfor %}",
       "bytes"},
      {"{% set s = 'a' * 1000 %}{% set t = 'b' ~ 'a' * 500 %}{% for i in range(99999) %}{% for j "
       "in range(99) %}{% set x = s.rfind(t) %}{% endfor %}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% set d = {t ~ 1: 1, t ~ 2: 2} %}{% set q = t ~ 3 %}{% for i "
       "in range(99999) %}{% set x = d[q] is defined %}{% endfor %}",
       "steps"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ []|tojson(separators=(t, t)) }}{% "
       "endfor %}",
       "steps"},
      {"{% set n = namespace(d={}) %}{% for i in range(500) %}{% set n.d = dict(n.d, **{'k' ~ i: "
       "''}) %}{% endfor %}{% for i in range(99999) %}{{ '' % n.d }}{% endfor %}",
       "bytes"},
      {"{% for i in range(99999) %}{% for j in range(99) %}{% set x = 1e300|round(300) %}{% set x "
       "= 0.1|round(300) %}{% endfor %}{% endfor %}",
       "template"},
      {"{% set r = range(1000)|list %}{{ (['a'] * 1000000)|map('format', *r, a=1)|list }}",
       "bytes"},
      {"{% set r = range(1000)|list %}{% macro f() %}{{ varargs|length }}{% endmacro %}{% for i in "
       "range(99999) %}{{ f(*r) }}{% endfor %}",
       "bytes"},
      // many small results
      {"{% for i in range(99999) %}{% for j in range(99) %}{% set x = strftime_now('%4090Y') %}{% "
       "endfor %}{% endfor %}",
       "bytes"},
      {"{% set f = '%c' * 128 %}{% for i in range(99999) %}{% for j in range(99) %}{% set x = "
       "strftime_now(f) %}{% endfor %}{% endfor %}",
       "bytes"},
      {"{% for i in range(99999) %}{% set a = 1 %}{% set b = 1 %}{% set c = 1 %}{% set d = 1 %}{% "
       "set e = 1 %}{% set f = 1 %}{% set g = 1 %}{% set h = 1 %}{% set k = 1 %}{% endfor %}",
       "bytes"},
      {"{{ ([1] * 600000)|map('string')|list|length }}", "bytes"},
      {"{{ ([1] * 600000)|map(attribute='x')|list|length }}", "bytes"},
      // recursion
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses deeper"},
      {"{% macro f(x=f()) %}{% endmacro %}{{ f() }}", "recurses deeper"},
      {"{% macro f() %}{% call g() %}{{ f() }}{% endcall %}{% endmacro %}{% macro g() %}{{ "
       "caller() }}{% endmacro %}{{ f() }}",
       "recurses deeper"},
      {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recurses deeper"},
      {"{% set n = namespace(x=1) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
       "nested deeper"},
      {"{% set n = namespace(x=1) %}{% for i in range(99999) %}{% set n.x = {'a': n.x} %}{% endfor "
       "%}",
       "nested deeper"},
      // memory
      {"{{ 'a' * 10000000000 }}", "bytes"},
      {"{{ ('a' * 1000000) * 1000000 }}", "bytes"},
      {"{{ [1] * 100000000000 }}", "bytes"},
      {"{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor "
       "%}",
       "bytes"},
      {"{% set t = 'a' * 1000000 %}{{ t.replace('a', t) }}", "bytes"},
      {"{% set t = 'a' * 1000000 %}{{ ([t] * 1000)|join(t) }}", "bytes"},
      {"{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t }}{% endfor %}", "bytes"},
      {"{% for i in range(99999) %}{% for j in range(99) %}{% macro m() %}{% endmacro %}{% endfor "
       "%}{% endfor %}",
       "bytes"},
      {"{% for i in range(99999) %}{% for j in range(999) %}{% set x = namespace() %}{% endfor "
       "%}{% endfor %}",
       "bytes"},
      {"{{ range(1000000000000) }}", "range too big"},
      {"{{ '%999999999d' % 1 }}", "format '9'"},
      {"{{ '{:999999999}'.format(1) }}", "format '999999999'"},
      {"{{ 10 ** 1000000000 }}", "128 bits"},
      {"{{ 170141183460469231731 * 170141183460469231731 }}", "64 bits"},
      // ways out of the sandbox
      {"{{ ''.__class__ }}", "unsafe"},
      {"{{ ''['__class__'].__mro__[1].__subclasses__() }}", "unsafe"},
      {"{{ range.__globals__ }}", "unsafe"},
      {"{{ '{0.__class__}'.format('') }}", "format"},
      {"{{ [1].append(2) }}", "unsafe"},
      {"{{ messages.clear() }}", "unsafe"},
  };
  for (const Refused& hostile : cases)
    EXPECT_THAT(template_error(hostile.source, {{"messages", Json::array()}}),
                HasSubstr(hostile.error))
        << hostile.source;
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Jinja, DeeplyNestedSourcesEndInAnError) {
  const std::string sources[] = {"{{ " + repeat("(", 100000) + " }}",
                                 "{{ 1" + repeat("+1", 100000) + " }}",
                                 "{{ 1" + repeat("|abs", 100000) + " }}",
                                 "{{ a" + repeat(".b", 100000) + " }}",
                                 "{{ " + repeat("not ", 100000) + "1 }}",
                                 "{{ " + repeat("-", 100000) + "1 }}",
                                 repeat("{% if 1 %}", 100000),
                                 "{{ " + repeat("1 if 0 else ", 100000) + "1 }}",
                                 "{{ a" + repeat("()", 100000) + " }}",
                                 "{{ 1" + repeat(" and 1", 100000) + " }}",
                                 "{{ 1 is a" + repeat(" [0", 100000) + "]",
                                 "{% set " + repeat("(", 100000) + "a = 1 %}"};
  for (const std::string& source : sources)
    EXPECT_THAT(template_error(source), HasSubstr("line 1, column ")) << source.substr(0, 20);
  std::string names;
  for (int i = 0; i < 2000; ++i) names += "{{ v" + std::to_string(i) + " }}";
  EXPECT_THAT(template_error(names), HasSubstr("more than 1000 different variables"));
}

TEST(Jinja, LongSourcesEndInAnError) {
  const auto loop = [](const std::string& body) {
    return "{% for i in range(99999) %}{% for j in range(99) %}" + body +
           "{% endfor %}{% endfor %}";
  };
  EXPECT_THAT(template_error(std::string((1 << 20) + 1, 'a')),
              HasSubstr("more than 1048576 bytes"));
  EXPECT_EQ(render(std::string(1 << 20, 'a')).size(), 1 << 20);
  for (const std::string& source :
       {loop("{% if 0 %}" + repeat("{% elif 0 %}", 10000) + "{% endif %}"),
        loop("{% with " + repeat("a=1, ", 10000) + "b=1 %}{% endwith %}"),
        loop("{% set x = ''" + repeat(" in ''", 10000) + " %}"),
        loop("{% set x = [" + repeat("1,", 10000) + "] %}"),
        loop("{% set x = dict(" + repeat("a=1,", 10000) + "b=1) %}"),
        loop("{% set x = " + std::string(10000, 'a') + " is defined %}"),
        loop("{% set x = range." + std::string(10000, 'a') + " is defined %}")})
    EXPECT_THAT(template_error(source), HasSubstr("the template ")) << source.substr(0, 90);
  // Copying the body for each enclosing block would take minutes.
  EXPECT_EQ(render(repeat("{% set x %}", 150) + repeat("{{ 1 }}", 100'000) +
                   repeat("{% endset %}", 150) + "{{ x|length }}"),
            "0");
}

TEST(Jinja, LongMessagesAreShortened) {
  const std::string error = template_error("{{ raise_exception('\u00e9' * 1000000) }}");
  EXPECT_LT(error.size(), 3000);
  EXPECT_TRUE(is_utf8(error)) << error;
}

TEST(Jinja, WhatOutlivesItsBlockStaysValid) {
  EXPECT_EQ(render("{% set n = namespace() %}{% for i in [1, 2] %}{% macro m() %}{{ i }}{% "
                   "endmacro %}{% set n.m = m %}"
                   "{% endfor %}{{ n.m() }}"),
            "2");
  EXPECT_EQ(render("{% set n = namespace() %}{% macro m() %}{% set n.c = caller %}{% endmacro %}{% "
                   "for i in [1, 2] %}"
                   "{% set k = i %}{% call m() %}<{{ k }}>{% endcall %}{% endfor %}{{ n.c() }}"),
            "<2>");
  EXPECT_EQ(render("{% set n = namespace() %}{% for j in [1] %}{% for i in [1, 2] recursive %}{{ i "
                   "}}{% set n.l = loop %}"
                   "{% endfor %}{% endfor %}{{ n.l([7, 8]) }}"),
            "1278");
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.me = n %}{{ n.me.me == n }}{{ [n]|length }}"),
            "True1");
}

TEST(Jinja, IntegersOfJsonStayExact) {
  const Json context = {{"x", uint64_t{18446744073709551615u}},
                        {"y", int64_t{-9223372036854775807} - 1}};
  EXPECT_EQ(render("{{ x }} {{ x + 1 }} {{ y - 1 }} {{ [x, y]|tojson }}", context),
            "18446744073709551615 18446744073709551616 -9223372036854775809 "
            "[18446744073709551615, -9223372036854775808]");
}

TEST(Jinja, RefusesTextsThatAreNotUtf8) {
  EXPECT_THAT(template_error("{{ x }}", {{"x", "a\xFF"}}), HasSubstr("not valid UTF-8"));
}

TEST(JinjaText, PythonsWhitespaceAndLineEnds) {
  EXPECT_EQ(jinja::strip("\u2003\u00a0 a\u3000b \x1c\n"), "a\u3000b");
  EXPECT_EQ(jinja::strip("xéxaxé", "éx"), "a");
  EXPECT_EQ(jinja::split("\u00a0a\u2003b  c ", {}).size(), 3);
  EXPECT_EQ(jinja::split_lines("a\r\nb\u2028c\x0b\n").size(), 4);
  EXPECT_EQ(jinja::quote("it's\u200b\x01\xF0\x9F\x99\x82"), "\"it's\\u200b\\x01\xF0\x9F\x99\x82\"");
}

}  // namespace
}  // namespace nanovllm
