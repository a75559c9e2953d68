#include "nanovllm/text/tokenizer/tokenizer_json.h"

#include <charconv>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

// What is beside the vocabulary and the merges is small; ordered_json looks each key up among all
// before it, and each component of a pipeline is a call within the one before it.
constexpr size_t kMaxFields = 1000;
constexpr size_t kMaxComponents = 100;

// Reads JSON text from left to right. It is exact for objects, arrays of strings, strings and
// integers; other values are cut out whole and left to parse_json().
class Scanner {
 public:
  Scanner(std::string_view text, const std::string& where, std::deque<std::string>& unescaped)
      : begin_(text.data()),
        p_(begin_),
        end_(begin_ + text.size()),
        where_(where),
        unescaped_(unescaped) {}

  [[noreturn]] void fail_here(const char* expected) const {
    fail("{}: not valid JSON: {} expected at byte {}", where_, expected, p_ - begin_);
  }

  // The next character that is not white space, not taken; 0 at the end.
  char peek() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
    return p_ < end_ ? *p_ : '\0';
  }
  bool at_end() {
    peek();  // also 0 for a NUL in the text
    return p_ == end_;
  }
  bool take_if(char c) {
    if (peek() != c) return false;
    ++p_;
    return true;
  }
  void take(char c, const char* expected) {
    if (!take_if(c)) fail_here(expected);
  }

  // on_member(key) must take the value.
  template <class F>
  void object(F&& on_member) {
    take('{', "an object");
    if (take_if('}')) return;
    do {
      const std::string_view key = string();
      take(':', "':'");
      on_member(key);
    } while (take_if(','));
    take('}', "',' or '}'");
  }
  template <class F>
  void array(F&& on_element) {
    take('[', "an array");
    if (take_if(']')) return;
    do on_element();
    while (take_if(','));
    take(']', "',' or ']'");
  }

  std::string_view string() {
    const std::string_view raw = raw_string();
    if (raw.find('\\') == std::string_view::npos) return raw;
    // Few tokens hold an escape, and what escapes mean is nlohmann's business.
    const std::string_view quoted(raw.data() - 1, raw.size() + 2);
    return unescaped_.emplace_back(parse_json(quoted, where_).get<std::string>());
  }

  int32_t token_id(std::string_view token) {
    peek();
    int64_t id = -1;
    const auto [after, error] = std::from_chars(p_, end_, id);
    const bool fraction = after < end_ && (*after == '.' || *after == 'e' || *after == 'E');
    const bool padded = after - p_ > 1 && *p_ == '0';
    require(error == std::errc() && !fraction && !padded && *p_ != '-' && id < kMaxTokens,
            "{}: model.vocab: the id of '{}', at byte {}, must be an integer of 0 to {}", where_,
            token, p_ - begin_, kMaxTokens - 1);
    p_ = after;
    return static_cast<int32_t>(id);
  }

  // The text of a value of any kind; whether it is well-formed inside is left to parse_json().
  std::string_view value() {
    peek();
    const char* const from = p_;
    int64_t depth = 0;
    do {
      const char c = peek();
      const char* const before = p_;
      if (c == '"') raw_string();
      else if (std::strchr("{}[],:", c) != nullptr && p_ < end_) ++p_;
      else
        while (p_ < end_ && std::strchr("{}[],:\" \n\r\t", *p_) == nullptr) ++p_;
      if (p_ == before) fail_here("a value");
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    } while (depth > 0);
    return {from, static_cast<size_t>(p_ - from)};
  }

 private:
  // What stands between the quotes.
  std::string_view raw_string() {
    take('"', "a string");
    const char* const from = p_;
    for (; p_ < end_ && *p_ != '"'; ++p_) {
      if (static_cast<unsigned char>(*p_) < 0x20) fail_here("no control character in a string");
      if (*p_ == '\\' && p_ + 1 < end_) ++p_;
    }
    const std::string_view raw(from, static_cast<size_t>(p_ - from));
    take('"', "the end of a string");
    return raw;
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  const std::string& where_;
  std::deque<std::string>& unescaped_;
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where) {
  require(text.size() < size_t{1} << 30, "{}: larger than 1 GiB", where);
  require(is_utf8(text), "{}: not valid UTF-8", where);
  TokenizerJson out;
  Scanner scanner(text, where, out.unescaped);
  const auto keep = [&](Json& object, std::string_view key) {
    require(object.size() < kMaxFields, "{}: an object with more than {} keys", where, kMaxFields);
    object[std::string(key)] = parse_json(scanner.value(), fmt::format("{}: {}", where, key));
  };
  const auto read_merge = [&] {
    if (scanner.peek() == '"') {
      const std::string_view pair = scanner.string();
      const size_t space = pair.find(' ');
      require(
          space != std::string_view::npos && pair.find(' ', space + 1) == std::string_view::npos,
          "{}: model.merges: '{}' is not two tokens with a space between", where, pair);
      out.merges.emplace_back(pair.substr(0, space), pair.substr(space + 1));
      return;
    }
    std::string_view pair[2];
    int n = 0;
    scanner.array([&] {
      const std::string_view token = scanner.string();
      if (n < 2) pair[n] = token;
      ++n;
    });
    require(n == 2, "{}: model.merges: entry {} holds {} tokens, not 2", where, out.merges.size(),
            n);
    out.merges.emplace_back(pair[0], pair[1]);
  };
  const auto read_model = [&](Json& model, std::string_view key) {
    // Other kinds of model have other kinds of vocabulary; their type is refused later, by name.
    if (key == "vocab" && scanner.peek() == '{')
      scanner.object([&](std::string_view token) {
        out.vocab.push_back({token, scanner.token_id(token)});
      });
    else if (key == "merges" && scanner.peek() == '[') scanner.array(read_merge);
    else keep(model, key);
  };
  out.fields = Json::object();
  scanner.object([&](std::string_view key) {
    if (key != "model" || scanner.peek() != '{') return keep(out.fields, key);
    Json& model = out.fields["model"] = Json::object();
    scanner.object([&](std::string_view model_key) { read_model(model, model_key); });
  });
  if (!scanner.at_end()) scanner.fail_here("the end of the text");
  return out;
}

const Json& field(const Json& json, const char* key, const std::string& where) {
  require(json.is_object() && json.contains(key), "{}: '{}' is missing", where, key);
  return json[key];
}

std::string string_field(const Json& json, const char* key, const std::string& where) {
  const Json& value = field(json, key, where);
  require(value.is_string(), "{}: '{}' must be a string", where, key);
  return value.get<std::string>();
}

bool bool_field(const Json& json, const char* key, bool otherwise, const std::string& where) {
  if (!json.contains(key) || json[key].is_null()) return otherwise;
  require(json[key].is_boolean(), "{}: '{}' must be true or false", where, key);
  return json[key].get<bool>();
}

std::vector<const Json*> components(const Json& json, const char* list_key,
                                    const std::string& where) {
  std::vector<const Json*> out;
  if (json.is_null()) return out;
  if (string_field(json, "type", where) != "Sequence") return {&json};
  const Json& list = field(json, list_key, where);
  require(list.is_array(), "{}: '{}' must be a list", where, list_key);
  for (const Json& member : list)
    for (const Json* component : components(member, list_key, where)) out.push_back(component);
  require(out.size() <= kMaxComponents, "{}: more than {} components", where, kMaxComponents);
  return out;
}

}  // namespace nanovllm
