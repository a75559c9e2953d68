#include "nanovllm/text/tokenizer_json.h"

#include <algorithm>
#include <charconv>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

// Everything except the vocabulary and the merges is small. The limits bound what ordered_json
// does, which compares each key with all keys before it, and the steps that a text goes through.
constexpr size_t kMaxFields = 1000;
constexpr size_t kMaxComponents = 100;

// Reads JSON text from left to right. It checks objects, arrays, strings and token ids itself; any
// other value is cut out whole, and parse_json() checks it.
class Scanner {
 public:
  Scanner(std::string_view text, TokenizerJson& out)
      : begin_(text.data()), p_(begin_), end_(begin_ + text.size()), out_(out) {}

  [[noreturn]] void fail_here(std::string_view expected) const {
    fail("{}: not valid JSON: {} expected at byte {}", out_.where, expected, p_ - begin_);
  }

  // The next character after white space, which is not taken; 0 at the end.
  char peek() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
    return p_ < end_ ? *p_ : '\0';
  }
  bool take_if(char c) {
    if (peek() != c) return false;
    ++p_;
    return true;
  }
  void take(char c) {
    if (!take_if(c)) fail_here(fmt::format("'{}'", c));
  }
  void take_end() {
    peek();
    if (p_ < end_) fail_here("the end of the text");
  }

  // Calls on_element() for each element of a list between brackets; it must take the element.
  template <class F>
  void list(char open, char close, F&& on_element) {
    take(open);
    if (take_if(close)) return;
    do on_element();
    while (take_if(','));
    take(close);
  }
  // Calls on_member(key) for each member of an object; it must take the value.
  template <class F>
  void object(F&& on_member) {
    list('{', '}', [&] {
      const std::string_view key = string();
      take(':');
      on_member(key);
    });
  }

  std::string_view string() {
    const std::string_view quoted = quoted_string();
    if (quoted.find('\\') == std::string_view::npos) return quoted.substr(1, quoted.size() - 2);
    // Few tokens have an escape, so the parser of JSON replaces them.
    return out_.unescaped.emplace_back(parse_json(quoted, out_.where).get<std::string>());
  }

  int32_t token_id(std::string_view token) {
    peek();
    uint32_t id = 0;
    const auto [after, error] = std::from_chars(p_, end_, id);
    const bool has_fraction = after < end_ && (*after == '.' || *after == 'e' || *after == 'E');
    const bool has_leading_zero = after - p_ > 1 && *p_ == '0';
    require(error == std::errc() && !has_fraction && !has_leading_zero && id < kMaxTokens,
            "{}: model.vocab: the id of '{}', at byte {}, must be an integer of 0 to {}",
            out_.where, token, p_ - begin_, kMaxTokens - 1);
    p_ = after;
    return static_cast<int32_t>(id);
  }

  // A value of any kind, up to the ',' or the bracket that ends it. `key` is for messages.
  Json value(std::string_view key) {
    const char* const from = p_;
    int64_t depth = 0;
    while (p_ < end_) {
      const char c = *p_;
      if (c == '"') {
        quoted_string();
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      ++p_;
    }
    return parse_json({from, static_cast<size_t>(p_ - from)},
                      fmt::format("{}: {}", out_.where, key));
  }

 private:
  std::string_view quoted_string() {
    take('"');
    const char* const from = p_ - 1;
    for (; p_ < end_ && *p_ != '"'; ++p_) {
      if (static_cast<unsigned char>(*p_) < 0x20) fail_here("no control character in a string");
      if (*p_ == '\\' && p_ + 1 < end_) ++p_;
    }
    if (p_ == end_) fail_here("the end of a string");
    ++p_;
    return {from, static_cast<size_t>(p_ - from)};
  }

  const char* const begin_;
  const char* p_;
  const char* const end_;
  TokenizerJson& out_;
};

TokenizerJson::Merge read_merge(Scanner& scanner, const std::string& where) {
  std::string_view tokens[2];
  if (scanner.peek() == '"') {
    const std::string_view both = scanner.string();
    const size_t space = both.find(' ');
    require(space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos,
            "{}: model.merges: '{}' is not two tokens with a space between", where, both);
    return {both.substr(0, space), both.substr(space + 1)};
  }
  size_t n = 0;
  scanner.list('[', ']', [&] {
    const std::string_view token = scanner.string();
    if (n < 2) tokens[n] = token;
    ++n;
  });
  require(n == 2, "{}: model.merges: an entry has {} tokens instead of 2", where, n);
  return {tokens[0], tokens[1]};
}

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where) {
  require(text.size() < size_t{1} << 30, "{}: larger than 1 GiB", where);
  require_utf8(text, where);
  TokenizerJson out{.where = where, .vocab = {}, .merges = {}, .fields = Json::object()};
  Scanner scanner(text, out);
  const auto keep = [&](Json& object, std::string_view key) {
    require(object.size() < kMaxFields, "{}: an object with more than {} keys", where, kMaxFields);
    object[std::string(key)] = scanner.value(key);
  };
  const auto read_model = [&](Json& model, std::string_view key) {
    // Other kinds of model have other kinds of vocabulary; Bpe refuses such a model by its type.
    if (key == "vocab" && scanner.peek() == '{')
      scanner.object([&](std::string_view token) {
        out.vocab.push_back({token, scanner.token_id(token)});
      });
    else if (key == "merges" && scanner.peek() == '[')
      scanner.list('[', ']', [&] {
        const TokenizerJson::Merge merge = read_merge(scanner, where);
        // Skip "#version: 0.2", the first line of merges.txt, which old files have copied.
        if (!merge.first.starts_with("#version")) out.merges.push_back(merge);
      });
    else keep(model, key);
  };
  scanner.object([&](std::string_view key) {
    if (key != "model" || scanner.peek() != '{') return keep(out.fields, key);
    Json& model = out.fields["model"] = Json::object();
    scanner.object([&](std::string_view model_key) { read_model(model, model_key); });
  });
  scanner.take_end();
  return out;
}

const Json& JsonObject::at(const std::string& key) const {
  require(json.is_object() && json.contains(key), "{}: '{}' is missing", where, key);
  return json[key];
}

std::string JsonObject::string(const std::string& key) const {
  require(at(key).is_string(), "{}: '{}' must be a string", where, key);
  return at(key).get<std::string>();
}

bool JsonObject::flag(const std::string& key, bool otherwise) const {
  if (!json.contains(key) || json[key].is_null()) return otherwise;
  require(json[key].is_boolean(), "{}: '{}' must be true or false", where, key);
  return json[key].get<bool>();
}

std::string JsonObject::character(const std::string& key) const {
  std::string text = string(key);
  require(!text.empty() && static_cast<size_t>(utf8_len(text[0])) == text.size(),
          "{}: the {} must be one character", where, key);
  return text;
}

int32_t JsonObject::token_id(const Json& id) const {
  require(id.is_number_integer() && id >= 0 && id < kMaxTokens,
          "{}: an id must be an integer of 0 to {}", where, kMaxTokens - 1);
  return id.get<int32_t>();
}

std::vector<Component> TokenizerJson::components(
    const char* name, const char* list, const std::vector<std::string_view>& supported) const {
  const std::string pipeline = where + ": " + name;
  std::vector<Component> out;
  const auto add = [&](const auto& self, const Json& json) -> void {
    const JsonObject object{json, pipeline};
    const std::string type = object.string("type");
    if (type == "Sequence") {
      require(object.at(list).is_array(), "{}: '{}' must be a list", pipeline, list);
      for (const Json& member : object.at(list)) self(self, member);
      return;
    }
    require(std::ranges::find(supported, type) != supported.end(),
            "{}: '{}' is not supported; Sequence, {} are", pipeline, type, join(supported, ", "));
    out.push_back({{json, pipeline + ": " + type}, type});
    require(out.size() <= kMaxComponents, "{}: more than {} components", pipeline, kMaxComponents);
  };
  if (fields.contains(name) && !fields[name].is_null()) add(add, fields[name]);
  return out;
}

}  // namespace nanovllm
