#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/text/jinja/budget.h"

// The values of templates and their operations. They are Python's, because templates are written
// against Jinja2, which is written in Python.
namespace nanovllm::jinja {

class Value;
using Values = std::vector<Value>;
struct Builtin;
struct Dict;
struct Function;
struct Loop;
struct Macro;
struct Scope;
struct Sequence;

/// Wide enough for every integer of JSON; a result that does not fit is an error.
using Int = __int128;

struct None {};
/// Jinja2's default Undefined: it prints as nothing, is false and is empty. Every other use raises
/// `why`.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct Text {
  std::string s;        // UTF-8
  bool markup = false;  // from |safe or |escape: adding a text to it escapes that text
};
/// A dictionary that {% set x.y = z %} can change.
struct Namespace;

/// A value. As in Jinja2's immutable sandbox, a template can change only namespaces, loops, scopes
/// and the position in a generator. Other values are shared and never change. Cycles can only go
/// through namespaces, loops and scopes, which the interpreter owns, so reference counts free
/// everything else.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            std::shared_ptr<const Function>, Namespace*, Loop*>;

  Value() = default;
  /// Converts from each type of Data, and from all integers.
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Value> && std::constructible_from<Data, T>)
      Value(T&& v)  // NOLINT(bugprone-forwarding-reference-overload): `requires` excludes a Value
      : data_(std::forward<T>(v)) {}
  Value(std::string s, bool markup = false)
      : data_(std::make_shared<const Text>(Text{std::move(s), markup})) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  /// True for a bool too, because Python's bool is an int.
  bool is_integer() const { return is_bool() || std::holds_alternative<Int>(data_); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }
  bool is_markup() const { return is_string() && text().markup; }
  /// Whether it is a text that no other value shares.
  bool is_new_text() const {
    const auto* text = std::get_if<std::shared_ptr<const Text>>(&data_);
    return text != nullptr && text->use_count() == 1;
  }
  bool is_iterable() const { return is_undefined() || is_string() || sequence() || dict(); }

  /// text(), number() and the like may only be called for a value of that kind.
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& string() const { return text().s; }
  Int integer() const { return is_bool() ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  double number() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
  }
  /// sequence() and the like return null for a value of another kind.
  const Sequence* sequence() const { return pointer<std::shared_ptr<const Sequence>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  const Function* function() const { return pointer<std::shared_ptr<const Function>>(); }
  Namespace* space() const { return pointer<Namespace*>(); }
  Loop* loop() const { return pointer<Loop*>(); }

  /// The name of the Python type.
  std::string_view type_name() const;
  /// The value itself. Raises the reason if it is undefined.
  const Value& defined() const;
  /// How many levels of lists and dictionaries are nested in it; 0 for a plain value.
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

/// A list, or something that is read like one: the result of range(), of dict.items(), or of a
/// filter that is a generator in Python.
struct Sequence {
  enum class Kind { kList, kTuple, kRange, kView, kGenerator };
  Kind kind;
  Values items;
  int depth;
  mutable size_t next = 0;  // the first item that a generator has not yielded

  bool is_plain() const { return kind == Kind::kList || kind == Kind::kTuple; }
  bool is_indexable() const { return is_plain() || kind == Kind::kRange; }
};

inline bool is_kind(const Value& v, Sequence::Kind kind) {
  return v.sequence() != nullptr && v.sequence()->kind == kind;
}

/// Keys in the order of insertion. A lookup compares one key after another, because the
/// dictionaries of templates are small.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(const Value& key, Budget& budget) const;
  void set(Value key, Value value, Budget& budget);
  /// Adds a key that is known to be new, without looking it up.
  void add(Value key, Value value, Budget& budget);
};
struct Namespace : Dict {};

/// A builtin (if it is a method, with its object), or a macro with the scope of its definition.
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
Value make_undefined(std::string why, Budget& budget);

/// Python's bool(), str(), repr(), len(), list(). str() of an undefined value is empty.
bool truthy(const Value& v);
std::string to_string(const Value& v, Budget& budget);
std::string repr(const Value& v, Budget& budget);
size_t length(const Value& v, Budget& budget);
Values to_list(const Value& v, Budget& budget);
/// Appends what to_string() returns.
void write(Writer& out, const Value& v);
std::string float_repr(double d);

/// How lists and dictionaries are printed: as repr() does, or as json.dumps() does.
struct PrintStyle {
  bool json = false;
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item a line, with `indent` for each level
  std::string indent = {};
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string print(const Value& v, const PrintStyle& style, Budget& budget);

/// `a op b` for arithmetic and "~", `-a`, and `a[start:stop:step]`, as in Python.
Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget);
Value negative(const Value& a);
Value slice(const Value& v, const Value& start, const Value& stop, const Value& step,
            Budget& budget);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Whether a comes before b in a sorted list.
bool less(const Value& a, const Value& b, Budget& budget);
/// `op` is one of == != < <= > >= in "not in".
bool compare(std::string_view op, const Value& a, const Value& b, Budget& budget);

}  // namespace nanovllm::jinja
