#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/jinja_error.h"

/// Jinja2 templates. Values and their operations are Python's, since that is what templates are
/// written against.
namespace nanovllm::jinja {

/// Wide enough for every integer of JSON; a result that does not fit is an error.
using Int = __int128;

/// What one rendering may use. Bytes count what was ever built, not what is held: so they bound
/// time as well as memory. Both limits grow with what the caller passed in, to which the work of an
/// honest template is proportional; a long conversation needs a few percent of them.
class Budget {
 public:
  static constexpr int64_t kSteps = 10'000'000;
  static constexpr int64_t kBytes = int64_t{64} << 20;

  explicit Budget(size_t input_bytes)
      : max_steps_(kSteps + 4 * static_cast<int64_t>(input_bytes)),
        max_bytes_(kBytes + 64 * static_cast<int64_t>(input_bytes)) {}

  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > max_steps_) raise("the template takes more than {} steps", max_steps_);
  }
  /// Reading is cheap, but a loop may read a long text again and again.
  void read(size_t bytes) { step(static_cast<int64_t>(bytes / 16)); }
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
  explicit Writer(Budget& budget) : budget_(budget) {}
  void add(std::string_view s) {
    budget_.build(s.size());
    text_ += s;
  }
  void fill(size_t count, std::string_view s = " ") {
    if (!s.empty() && count > SIZE_MAX / s.size()) count = SIZE_MAX / s.size();
    budget_.build(count * s.size());
    for (size_t i = 0; i < count && !s.empty(); ++i) text_ += s;
  }
  Budget& budget() { return budget_; }
  std::string take() { return std::move(text_); }

 private:
  Budget& budget_;
  std::string text_;
};

class Value;
struct Builtin;
struct Loop;
struct Macro;
struct Namespace;
struct Scope;
struct Sequence;
struct Dict;
struct Function;

struct None {};
/// Jinja2's default Undefined: prints as nothing, is false and empty; any other use raises `why`.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct Text {
  std::string s;        // UTF-8
  bool markup = false;  // came from |safe or |escape: adding to it escapes the other side
};

/// Values are immutable but for namespaces, loops and how far an iterator was read, as in the
/// immutable sandbox. So only namespaces, loops and scopes can close a cycle; the interpreter owns
/// those.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            std::shared_ptr<const Function>, Namespace*, Loop*>;

  Value() = default;
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(Int i) : data_(i) {}
  Value(int64_t i) : data_(static_cast<Int>(i)) {}
  Value(int i) : data_(static_cast<Int>(i)) {}
  Value(size_t i) : data_(static_cast<Int>(i)) {}
  Value(double d) : data_(d) {}
  Value(std::string s, bool markup = false)
      : data_(std::make_shared<const Text>(Text{std::move(s), markup})) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(std::shared_ptr<const Sequence> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}
  Value(Namespace* space) : data_(space) {}
  Value(Loop* loop) : data_(loop) {}
  static Value undefined(std::string why);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  /// Python's bool is an int.
  bool is_integer() const { return is_bool() || std::holds_alternative<Int>(data_); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }
  bool is_markup() const { return is_string() && text().markup; }
  bool is_callable() const;

  /// The following require the kind.
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& string() const { return text().s; }
  Int integer() const { return is_bool() ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  double number() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
  }
  const Sequence* sequence() const { return pointer<Sequence>(); }  ///< null for other kinds
  const Dict* dict() const { return pointer<Dict>(); }              ///< null for other kinds
  const Function* function() const { return pointer<Function>(); }  ///< null for other kinds
  Namespace* space() const { return raw_pointer<Namespace>(); }     ///< null for other kinds
  Loop* loop() const { return raw_pointer<Loop>(); }                ///< null for other kinds

  /// The name of the Python type.
  const char* type_name() const;
  /// Raises the reason where the value is undefined.
  const Value& defined() const;
  /// Levels of lists and dictionaries within, 0 for a plain value.
  int depth() const;
  const Data& data() const { return data_; }

 private:
  template <class T>
  const T* pointer() const {
    const auto* p = std::get_if<std::shared_ptr<const T>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  template <class T>
  T* raw_pointer() const {
    T* const* p = std::get_if<T*>(&data_);
    return p == nullptr ? nullptr : *p;
  }

  Data data_;
};

using Values = std::vector<Value>;

/// A list or something that is read like one.
struct Sequence {
  enum class Kind { kList, kTuple, kRange, kView, kIterator };
  Kind kind;
  Values items;
  std::string name;  // how a range, view or iterator prints
  int depth;
  mutable size_t next = 0;  // the first item that an iterator has not yielded

  bool is_plain() const { return kind == Kind::kList || kind == Kind::kTuple; }
  bool indexable() const { return kind != Kind::kView && kind != Kind::kIterator; }
};

/// Keys in the order of insertion. Looked up one after another: the dictionaries of templates are
/// small.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value, Budget& budget);
};

/// A builtin (with the object whose method it is) or a macro with the scope it was defined in.
struct Function {
  const Builtin* builtin = nullptr;
  Value self = {};
  const Macro* macro = nullptr;
  Scope* scope = nullptr;
};

/// The one thing that a template can change.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  Value* find(std::string_view name);
};

Value make_list(Values items, Budget& budget, Sequence::Kind kind = Sequence::Kind::kList,
                std::string name = "");
Value make_tuple(Values items, Budget& budget);
Value make_dict(Dict dict, Budget& budget);
Value from_json(const Json& json, Budget& budget);

/// Python's bool(), str(), repr(), len(), list(). str() of undefined is empty.
bool truthy(const Value& v);
std::string to_string(const Value& v, Budget& budget);
std::string repr(const Value& v, Budget& budget);
size_t length(const Value& v, Budget& budget);
Values to_list(const Value& v, Budget& budget);
bool is_iterable(const Value& v);
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

bool equal(const Value& a, const Value& b, Budget& budget);
/// Below, at or above 0. Raises TypeError's text for kinds without an order; NaN compares as none
/// of the three: 2.
int compare(const Value& a, const Value& b, std::string_view op, Budget& budget);
/// `item in container`
bool contains(const Value& container, const Value& item, Budget& budget);

}  // namespace nanovllm::jinja
