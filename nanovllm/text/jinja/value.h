#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/base/json.h"

/// Jinja2 templates. Values and their operations are Python's, since that is what templates are
/// written against.
namespace nanovllm::jinja {

/// What went wrong in a template, and where: a byte offset in its source, set by the innermost
/// expression that the error passes on its way out.
class TemplateError : public std::runtime_error {
 public:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
  explicit TemplateError(const std::string& what, size_t offset = kUnknown)
      : std::runtime_error(what), offset(offset) {}
  size_t offset;
};

template <class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

/// Wide enough for every integer of JSON; a result that does not fit is an error.
using Int = __int128;

/// What one rendering may use. Bytes count what was ever built, not what is held: so they bound
/// time as well as memory. Builtins are charged where they are called and where they look at their
/// arguments (Interpreter::call, Bound); only what builds more than it reads asks here before it
/// does. Both limits grow with what the caller passed in, to which the work of an
/// honest template is proportional; a long conversation needs a few percent of them.
class Budget {
 public:
  static constexpr int64_t kSteps = 10'000'000;
  static constexpr int64_t kBytes = int64_t{64} << 20;

  explicit Budget(size_t input_bytes)
      : Budget(kSteps + 4 * static_cast<int64_t>(input_bytes),
               kBytes + 64 * static_cast<int64_t>(input_bytes)) {}
  Budget(int64_t max_steps, int64_t max_bytes) : max_steps_(max_steps), max_bytes_(max_bytes) {}

  void step(size_t count = 1) {
    steps_ += static_cast<int64_t>(count);
    if (steps_ > max_steps_) raise("the template takes more than {} steps", max_steps_);
  }
  /// Reading is cheap, but a loop may read a long text again and again.
  void read(size_t bytes) { step(bytes / 16); }
  /// A text of a value: its bytes and what holds them.
  void build_text(size_t bytes) { build(bytes + 80); }
  /// To be called before the bytes are allocated.
  void build(size_t bytes) {
    if (bytes > static_cast<size_t>(max_bytes_ - bytes_))
      raise("the template builds more than {} bytes", max_bytes_);
    bytes_ += static_cast<int64_t>(bytes);
  }

 private:
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int64_t max_steps_;
  int64_t max_bytes_;
};

/// A text that grows within the budget.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget(budget) {}
  void add(std::string_view s) {
    budget.build(s.size());
    text_ += s;
  }
  std::string take() {
    budget.build_text(0);
    return std::move(text_);
  }

  Budget& budget;

 private:
  std::string text_;
};

class Value;
using Values = std::vector<Value>;
struct Builtin;
struct Dict;
struct Function;
struct Loop;
struct Macro;
struct Scope;
struct Sequence;

struct None {};
/// Jinja2's default Undefined: prints as nothing, is false and empty; any other use raises `why`.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct Text {
  std::string s;        // UTF-8
  bool markup = false;  // came from |safe or |escape: adding to it escapes the other side
};
/// A dictionary that {% set x.y = z %} can change: the one thing that a template can.
struct Namespace;

/// Values are immutable but for namespaces, loops and how far a generator was read, as in the
/// immutable sandbox. So only those and scopes could close a cycle; the interpreter owns them.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            std::shared_ptr<const Function>, Namespace*, Loop*>;

  Value() = default;
  Value(int i) : data_(Int{i}) {}
  Value(int64_t i) : data_(Int{i}) {}
  Value(size_t i) : data_(static_cast<Int>(i)) {}
  Value(bool b) : data_(b) {}
  Value(std::string s, bool markup = false)
      : data_(std::make_shared<const Text>(Text{std::move(s), markup})) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(None) : data_(None{}) {}
  Value(Int i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(std::shared_ptr<const Sequence> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}
  Value(Namespace* space) : data_(space) {}
  Value(Loop* loop) : data_(loop) {}
  static Value undefined(std::string why, Budget& budget);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  /// Python's bool is an int.
  bool is_integer() const { return is_bool() || std::holds_alternative<Int>(data_); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }
  bool is_markup() const { return is_string() && text().markup; }
  /// A text that no other value shares.
  bool is_new_text() const {
    const auto* text = std::get_if<std::shared_ptr<const Text>>(&data_);
    return text != nullptr && text->use_count() == 1;
  }
  bool is_iterable() const { return is_undefined() || is_string() || sequence() || dict(); }

  /// The following require the kind.
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& string() const { return text().s; }
  Int integer() const { return is_bool() ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  double number() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
  }
  /// The following are null for other kinds.
  const Sequence* sequence() const { return pointer<std::shared_ptr<const Sequence>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  const Function* function() const { return pointer<std::shared_ptr<const Function>>(); }
  Namespace* space() const { return pointer<Namespace*>(); }
  Loop* loop() const { return pointer<Loop*>(); }

  /// The name of the Python type.
  std::string_view type_name() const;
  /// Raises the reason where the value is undefined.
  const Value& defined() const;
  /// Levels of lists and dictionaries within, 0 for a plain value.
  int depth() const;
  const Data& data() const { return data_; }

 private:
  template <class Pointer>
  auto pointer() const -> decltype(&*std::declval<Pointer>()) {
    const auto* p = std::get_if<Pointer>(&data_);
    return p == nullptr ? nullptr : &**p;
  }

  Data data_;
};

/// A list, or something that is read like one: what range(), dict.items() and the filters that are
/// generators in Python give.
struct Sequence {
  enum class Kind { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };
  Kind kind;
  Values items;
  int depth;
  mutable size_t next = 0;  // the first item that a generator has not yielded

  bool is_plain() const { return kind == Kind::kList || kind == Kind::kTuple; }
  bool is_indexable() const { return is_plain() || kind == Kind::kRange; }
};

/// Keys in the order of insertion. Looked up one after another: the dictionaries of templates are
/// small.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key, Budget& budget) const;
  void set(Value key, Value value, Budget& budget);
};
struct Namespace : Dict {};

/// A builtin (with the object whose method it is) or a macro with the scope it was defined in.
struct Function {
  const Builtin* builtin = nullptr;
  Value self = {};
  const Macro* macro = nullptr;
  Scope* scope = nullptr;
};

Value make_list(Values items, Budget& budget, Sequence::Kind kind = Sequence::Kind::kList);
Value make_tuple(Values items, Budget& budget);
Value make_dict(Dict dict, Budget& budget);
Value make_text(std::string_view text, Budget& budget);
Value make_function(Function function, Budget& budget);
Value from_json(const Json& json, Budget& budget);

/// Python's bool(), str(), repr(), len(), list(). str() of undefined is empty.
bool truthy(const Value& v);
std::string to_string(const Value& v, Budget& budget);
std::string repr(const Value& v, Budget& budget);
size_t length(const Value& v, Budget& budget);
Values to_list(const Value& v, Budget& budget);
/// Appends what to_string() gives.
void write(Writer& out, const Value& v);
std::string float_repr(double d);

/// json.dumps()
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item a line, `indent` for each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(const Value& v, const JsonStyle& style, Budget& budget);

/// a op b, -a and a[start:stop:step], as Python has them.
Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget);
Value negative(const Value& a);
/// Appends `s` as HTML.
void add_escaped(Writer& out, std::string_view s);
Value slice(const Value& v, const Value& start, const Value& stop, const Value& step,
            Budget& budget);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Whether a comes before b in a sorted list.
bool less(const Value& a, const Value& b, Budget& budget);
/// Any of == != < <= > >= in "not in".
bool compare(std::string_view op, const Value& a, const Value& b, Budget& budget);

}  // namespace nanovllm::jinja
