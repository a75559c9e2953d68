#include "nanovllm/text/grammar/syntax/structural_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"

namespace nanovllm::grammar {

namespace {

using Texts = std::vector<std::string>;

class StructuralTag {
 public:
  StructuralTag(Expressions& e, const JsonSchemaOptions& options, const std::string& where)
      : e_(e), options_(options), where_(where) {}

  /// A format at a JSON pointer. `ends` are the texts that end the tag around it: free text stops
  /// before them.
  Expr format(const Json& f, const std::string& at, const Texts& ends) {
    const std::string type = text(f, "type", at);
    if (type == "const_string") return e_.text(text(f, "value", at));
    if (type == "regex") return parse_regex(e_, text(f, "pattern", at), {}, place(at));
    if (type == "grammar") return grammar(f, at);
    if (type == "json_schema") return json_schema(f, text(f, "style", at, "json"), at);
    if (type == "qwen_xml_parameter") return json_schema(f, "qwen_xml", at);
    if (type == "any_text") return any_text(f, at, ends);
    if (type == "tag") return tag(f, at, 0);
    if (type == "triggered_tags") return triggered_tags(f, at, ends);
    if (type == "tags_with_separator") return tags_with_separator(f, at);
    if (type == "dispatch") return dispatch(f, at);
    const auto content = [&] { return format(member(f, "content", at), at + "/content", ends); };
    if (type == "optional") return e_.optional(content());
    if (type == "plus") return e_.repeat(content(), 1);
    if (type == "star") return e_.repeat(content(), 0);
    if (type == "repeat") {
      const int64_t min = number(member(f, "min", at), at + "/min", 0);
      const int64_t max = number(member(f, "max", at), at + "/max", -1);
      if (max >= 0 && max < min) error(at, "'max' is less than 'min'");
      return e_.repeat(content(), static_cast<uint32_t>(min),
                       max < 0 ? kUnlimited : static_cast<uint32_t>(max));
    }
    if (type != "sequence" && type != "or")
      error(at, "the type {} is not supported", printable(Json(type)));
    std::vector<Expr> parts;
    each(f, "elements", at,
         [&](const Json& part, const std::string& p) { parts.push_back(format(part, p, ends)); });
    if (type == "or") return e_.any_of(parts);
    Expr all = Expr::kEmpty;
    for (size_t i = parts.size(); i-- > 0;) all = e_.sequence(parts[i], all);
    return all;
  }

 private:
  Expr grammar(const Json& f, const std::string& at) {
    const std::string grammar = text(f, "grammar", at), syntax = text(f, "syntax", at, "");
    if (syntax.empty()) return parse_grammar(e_, grammar, place(at));
    if (syntax == "lark") return parse_lark(e_, grammar, place(at));
    if (syntax != "ebnf") error(at, "the syntax {} is not known", printable(Json(syntax)));
    return parse_gbnf(e_, grammar, place(at));
  }

  Expr json_schema(const Json& f, const std::string& style, const std::string& at) {
    if (flag(f, "any_order", at)) error(at, "'any_order' is not supported");
    if (!texts(f, "excludes", at).empty()) error(at, "'excludes' of a schema are not supported");
    JsonSchemaOptions options = options_;
    if (const Json& most = f["max_whitespace_cnt"]; !most.is_null())
      options.whitespace_pattern =
          fmt::format("[ \\t\\r\\n]{{0,{}}}", number(most, at + "/max_whitespace_cnt", 0));
    const Json& schema = member(f, "json_schema", at);
    if (style == "json") return parse_json_schema(e_, schema, options, place(at + "/json_schema"));
    return parse_xml_parameters(e_, schema, style, options, place(at + "/json_schema"));
  }

  Expr any_text(const Json& f, const std::string& at, const Texts& ends) {
    if (!f["max_tokens"].is_null()) error(at, "'max_tokens' is not supported");
    const Json& max = f["max_chars"];
    return without(
        joined(texts(f, "excludes", at), ends),
        max.is_null() ? kUnlimited : static_cast<uint32_t>(number(max, at + "/max_chars", 0)));
  }

  /// A tag without the first `skip` bytes of its beginning.
  Expr tag(const Json& f, const std::string& at, size_t skip) {
    const Texts ends =
        member(f, "end", at).is_array() ? texts(f, "end", at) : Texts{text(f, "end", at)};
    if (ends.empty()) error(at, "'end' is an empty list");
    // An empty end bounds no free text.
    Texts bounds = ends;
    std::erase(bounds, "");
    return e_.sequence({e_.text(text(f, "begin", at).substr(skip)),
                        format(member(f, "content", at), at + "/content", bounds), e_.texts(ends)});
  }

  /// Free text, in which a trigger must begin a tag.
  Expr triggered_tags(const Json& f, const std::string& at, const Texts& ends) {
    std::map<std::string, std::vector<Expr>> rests;
    for (const std::string& trigger : texts(f, "triggers", at)) rests[trigger];
    std::vector<Expr> tags;
    each(f, "tags", at, [&](const Json& t, const std::string& place) {
      const std::string begin = text(t, "begin", place);
      const auto begins = [&](const auto& rest) { return begin.starts_with(rest.first); };
      if (std::ranges::count_if(rests, begins) != 1)
        error(place, "'begin' must begin with exactly one of the triggers");
      const auto rest = std::ranges::find_if(rests, begins);
      rest->second.push_back(tag(t, place, rest->first.size()));
      tags.push_back(e_.sequence(e_.text(rest->first), rest->second.back()));
    });
    const bool once = flag(f, "stop_after_first", at), must = flag(f, "at_least_one", at);
    if (once && must) return e_.any_of(tags);
    const Expr more = dispatched(rests, joined(texts(f, "excludes", at), ends), once, at);
    return must ? e_.sequence(e_.any_of(tags), more) : more;
  }

  Expr tags_with_separator(const Json& f, const std::string& at) {
    std::vector<Expr> tags;
    each(f, "tags", at,
         [&](const Json& t, const std::string& place) { tags.push_back(tag(t, place, 0)); });
    const Expr one = e_.any_of(tags);
    const Expr next = e_.sequence(e_.text(text(f, "separator", at)), one);
    const Expr all = flag(f, "stop_after_first", at) ? one : e_.sequence(one, e_.repeat(next, 0));
    return flag(f, "at_least_one", at) ? all : e_.optional(all);
  }

  Expr dispatch(const Json& f, const std::string& at) {
    std::map<std::string, std::vector<Expr>> rests;
    each(f, "rules", at, [&](const Json& rule, const std::string& place) {
      if (!rule.is_array() || rule.size() != 2 || !rule[size_t{0}].is_string())
        error(place, "a rule is a list of a text and a format");
      rests[rule[size_t{0}].string()].push_back(format(rule[size_t{1}], place + "/1", {}));
    });
    return dispatched(rests, texts(f, "excludes", at), f.contains("loop") && !flag(f, "loop", at),
                      at);
  }

  /// Free text in which each trigger is followed by one of its continuations. It may end with an
  /// unfinished trigger. If `once`, it ends after the first continuation.
  Expr dispatched(const std::map<std::string, std::vector<Expr>>& rests, const Texts& excludes,
                  bool once, const std::string& at) {
    Texts triggers;
    for (const auto& [trigger, parts] : rests) {
      if (trigger.empty()) error(at, "a trigger is empty");
      if (parts.empty()) error(at, "no tag begins with the trigger {}", printable(Json(trigger)));
      // The shorter one is complete first, so that the longer one could never be.
      if (!triggers.empty() && trigger.starts_with(triggers.back()))
        error(at, "the trigger {} begins with another one", printable(Json(trigger)));
      triggers.push_back(trigger);
    }
    // Texts up to the first trigger's end: nothing but this trigger is complete in them.
    const Expr later =
        e_.sequence({Expr::kAny, e_.texts(triggers), e_.byte_range(0, 255), Expr::kAny});
    const Expr first = e_.both(without(excludes), e_.complement(later));
    std::vector<Expr> parts;
    for (const auto& [trigger, continuations] : rests)
      parts.push_back(e_.sequence(e_.both(first, e_.sequence(Expr::kAny, e_.text(trigger))),
                                  e_.any_of(continuations)));
    const Expr tag = e_.any_of(parts), text = without(joined(triggers, excludes));
    return once ? e_.any_of({tag, text}) : e_.sequence(e_.repeat(tag, 0), text);
  }

  /// At most `max` characters, in which none of these texts is.
  Expr without(const Texts& excludes, uint32_t max = kUnlimited) {
    const Expr text = e_.repeat(character(e_, CodePoints::all(), Coding::kUtf8), 0, max);
    if (excludes.empty()) return text;
    const Expr with = e_.sequence({Expr::kAny, e_.texts(excludes), Expr::kAny});
    return e_.both(text, e_.complement(with));
  }

  // -- Members of a format.
  template <class... Args>
  [[noreturn]] void error(const std::string& at, fmt::format_string<Args...> format,
                          Args&&... args) const {
    fail("{}: {}", place(at), fmt::format(format, std::forward<Args>(args)...));
  }
  std::string place(const std::string& at) const { return fmt::format("{}: {}", where_, at); }

  const Json& member(const Json& f, const char* key, const std::string& at) const {
    if (!f.is_object()) error(at, "it must be an object");
    if (!f.contains(key)) error(at, "'{}' is missing", key);
    return f[key];
  }
  std::string text(const Json& f, const char* key, const std::string& at,
                   const char* absent = nullptr) const {
    if (absent != nullptr && f[key].is_null()) return absent;
    const Json& value = member(f, key, at);
    if (value.is_object() && value["type"] == "token")
      error(at + "/" + key, "the type \"token\" is not supported; write the token's text");
    if (!value.is_string()) error(at + "/" + key, "it must be a string");
    return value.string();
  }
  bool flag(const Json& f, const char* key, const std::string& at) const {
    const Json& value = f[key];
    if (!value.is_null() && !value.is_boolean()) error(at + "/" + key, "it must be true or false");
    return value.is_boolean() && value.get<bool>();
  }
  int64_t number(const Json& value, const std::string& at, int64_t min) const {
    constexpr int64_t kMost = 1'000'000'000;
    if (!value.is_number_integer() || value < min || value > kMost)
      error(at, "it must be a whole number from {} to {}", min, kMost);
    return value.get<int64_t>();
  }
  /// A list of texts that are not empty, except for the end of a tag.
  Texts texts(const Json& f, const std::string& key, const std::string& at) const {
    Texts all;
    for (const Json& value : f[key]) {
      if (!f[key].is_array() || !value.is_string() || (value.string().empty() && key != "end"))
        error(at + "/" + key, "it must be a list of strings that are not empty");
      all.push_back(value.string());
    }
    return all;
  }
  static Texts joined(Texts a, const Texts& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  template <class Visit>
  void each(const Json& f, const std::string& key, const std::string& at, const Visit& visit) {
    const Json& list = member(f, key.c_str(), at);
    if (!list.is_array() || list.empty())
      error(at + "/" + key, "it must be a list with at least one element");
    for (size_t i = 0; i < list.size(); ++i) visit(list[i], fmt::format("{}/{}/{}", at, key, i));
  }

  Expressions& e_;
  const JsonSchemaOptions& options_;
  const std::string& where_;
};

/// The older form as the newer one.
Json format_of_structures(const Json& spec, const std::string& where) {
  Json tags = Json::array();
  for (const Json& structure : spec["structures"]) {
    Json schema = structure["schema"];
    if (schema.is_string()) schema = parse_json(schema.string(), where + ": schema");
    tags.push_back({{"type", "tag"},
                    {"begin", structure["begin"]},
                    {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                    {"end", structure["end"]}});
  }
  return {{"type", "triggered_tags"}, {"triggers", spec["triggers"]}, {"tags", std::move(tags)}};
}

}  // namespace

Expr parse_structural_tag(Expressions& e, const Json& spec, const JsonSchemaOptions& options,
                          const std::string& where) {
  require(spec.is_object() && (spec.contains("format") || spec.contains("structures")),
          "{}: it must be an object with 'format', or with 'structures' and 'triggers'", where);
  StructuralTag tag(e, options, where);
  if (spec.contains("format")) return tag.format(spec["format"], "/format", {});
  return tag.format(format_of_structures(spec, where), "", {});
}

}  // namespace nanovllm::grammar
