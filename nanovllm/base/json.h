#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace nanovllm {

class Json;
class JsonItem;
template <class Value>
class JsonIterator;

/// A JSON value. Objects keep the order of their keys, as Python's dictionaries do; templates print
/// them in this order, and a search compares each key. The names and meanings are those of
/// nlohmann::ordered_json, whose parser reads the text, but this class is no template, which each
/// source that uses JSON would have to compile.
///
/// A function that needs a value of one type throws std::logic_error for the others. Adding a
/// member or an element invalidates references to the ones before it.
class Json {
 public:
  enum class Type : uint8_t {
    kNull,
    kBoolean,
    kInteger,
    kUnsigned,
    kReal,
    kObject,
    kArray,
    kString
  };
  using Array = std::vector<Json>;
  struct Member;
  using Object = std::vector<Member>;
  using value_type = Json;
  using iterator = JsonIterator<Json>;
  using const_iterator = JsonIterator<const Json>;

  Json() = default;
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T value) : type_(Type::kBoolean), boolean_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)
      : type_(std::signed_integral<T> ? Type::kInteger : Type::kUnsigned) {
    if constexpr (std::signed_integral<T>) integer_ = value;
    else unsigned_ = value;
  }
  template <std::floating_point T>
  Json(T value) : type_(Type::kReal), real_(value) {}
  Json(std::string text);
  template <std::convertible_to<std::string_view> T>
  requires(!std::same_as<T, Json> && !std::same_as<T, std::string>) Json(const T& text)
      : Json(std::string(std::string_view(text))) {}
  template <class T>
  requires(!std::same_as<T, Json>) Json(const std::vector<T>& values)
      : Json(Array(values.begin(), values.end())) {}
  Json(Array values);
  /// An object if every item is a list of a text and a value, {{"a", 1}, {"b", 2}}; else an array.
  Json(std::initializer_list<JsonItem> items);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  /// parse_json() for a text that is known to be valid.
  static Json parse(std::string_view text);
  static Json array(std::initializer_list<JsonItem> items = {});
  static Json object(std::initializer_list<JsonItem> items = {});

  Type type() const { return type_; }
  /// The type's name for messages: "null", "boolean", "number", "object", "array", "string".
  const char* type_name() const;
  bool is_null() const { return type_ == Type::kNull; }
  bool is_boolean() const { return type_ == Type::kBoolean; }
  bool is_number() const { return is_number_integer() || type_ == Type::kReal; }
  bool is_number_integer() const { return type_ == Type::kInteger || is_number_unsigned(); }
  /// Whether it is a whole number of at least 0 that was parsed, or made of an unsigned type.
  bool is_number_unsigned() const { return type_ == Type::kUnsigned; }
  bool is_number_float() const { return type_ == Type::kReal; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_object() const { return type_ == Type::kObject; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_structured() const { return is_object() || is_array(); }

  /// The value as a C++ type: bool, a number (converted as static_cast does), std::string, or a
  /// std::vector of these.
  template <class T>
  T get() const;
  const std::string& string() const;
  std::string& string();

  // -- Objects and arrays. The size of null is 0, that of a text or number 1.
  size_t size() const;
  bool empty() const { return size() == 0; }
  void clear();
  iterator begin();
  iterator end();
  const_iterator begin() const;
  const_iterator end() const;

  // -- Objects. A key of something else is absent.
  bool contains(std::string_view key) const;
  iterator find(std::string_view key);
  const_iterator find(std::string_view key) const;
  /// The members, as pairs of key and value; none for null.
  Object& items();
  const Object& items() const;
  /// The value of the key, which is added if it is absent. Null becomes an object.
  Json& operator[](std::string_view key);
  /// The value of the key; null if it is absent.
  const Json& operator[](std::string_view key) const;
  Json& at(std::string_view key);
  const Json& at(std::string_view key) const;
  template <class T>
  T value(std::string_view key, T absent) const {
    const Json* const found = find_member(key);
    if (found == nullptr) return absent;
    if constexpr (std::same_as<T, Json>) return *found;
    else return found->get<T>();
  }
  std::string value(std::string_view key, const char* absent) const {
    return value(key, std::string(absent));
  }
  /// Adds a member unless the key exists. Null becomes an object.
  bool emplace(std::string_view key, Json value);
  /// Sets the members of another object.
  void update(const Json& other);
  /// Removes the key. Returns how many members were removed, 0 or 1.
  size_t erase(std::string_view key);

  // -- Arrays. Null becomes one when an element is added.
  Json& operator[](size_t index);
  const Json& operator[](size_t index) const;
  Json& at(size_t index);
  const Json& at(size_t index) const;
  Json& front();
  Json& back();
  const Json& front() const;
  const Json& back() const;
  void push_back(Json value);
  template <class... Args>
  Json& emplace_back(Args&&... args) {
    push_back(Json(std::forward<Args>(args)...));
    return back();
  }
  void insert(iterator before, Json value);
  void erase(size_t index);
  iterator erase(iterator at);

  /// Numbers are compared by value, texts, arrays and objects by contents. Values of different
  /// types are ordered as their types are: null < boolean < number < object < array < text.
  friend bool operator==(const Json& a, const Json& b) { return a.equals(b); }
  friend std::partial_ordering operator<=>(const Json& a, const Json& b) { return a.compare(b); }
  template <std::convertible_to<std::string_view> T>
  requires(!std::same_as<T, Json>) friend bool operator==(const Json& a, const T& text) {
    return a.is_string() && std::string_view(*a.string_) == std::string_view(text);
  }

  friend std::ostream& operator<<(std::ostream& to, const Json& json);
  /// See dump_json().
  std::string dump(int indent = -1) const;

 private:
  [[noreturn]] void throw_wrong_type(const char* needed) const;
  Json* find_member(std::string_view key) const;
  bool equals(const Json& other) const;
  std::partial_ordering compare(const Json& other) const;
  template <class T>
  T number() const;

  Type type_ = Type::kNull;
  union {
    bool boolean_;
    int64_t integer_ = 0;
    uint64_t unsigned_;
    double real_;
    std::string* string_;
    Array* array_;
    Object* object_;
  };
};

struct Json::Member {
  std::string key;
  Json value;

  bool operator==(const Member&) const = default;
};

/// One value in braces, which moves into the list that it is part of.
class JsonItem {
 public:
  template <class T>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): T is not JsonItem
  requires std::constructible_from<Json, T> JsonItem(T&& value) : value_(std::forward<T>(value)) {}
  JsonItem(std::initializer_list<JsonItem> items) : value_(items) {}

 private:
  friend class Json;
  mutable Json value_;
};

/// Visits the elements of an array or the values of an object. A text, number or boolean is a list
/// of itself, and null is empty.
template <class Value>
class JsonIterator {
 public:
  using value_type = Json;
  using difference_type = std::ptrdiff_t;
  using reference = Value&;
  using pointer = Value*;
  using iterator_category = std::random_access_iterator_tag;
  using Member = std::conditional_t<std::is_const_v<Value>, const Json::Member, Json::Member>;

  JsonIterator() = default;
  explicit JsonIterator(Value* element) : element_(element) {}
  explicit JsonIterator(Member* member) : member_(member) {}
  operator JsonIterator<const Json>() const requires(!std::is_const_v<Value>) {
    return member_ != nullptr ? JsonIterator<const Json>(member_)
                              : JsonIterator<const Json>(element_);
  }

  reference operator*() const { return member_ != nullptr ? member_->value : *element_; }
  pointer operator->() const { return &**this; }
  reference operator[](difference_type n) const { return *(*this + n); }
  const std::string& key() const { return member_->key; }
  reference value() const { return **this; }

  JsonIterator& operator+=(difference_type n) {
    if (member_ != nullptr) member_ += n;
    else element_ += n;
    return *this;
  }
  JsonIterator& operator-=(difference_type n) { return *this += -n; }
  JsonIterator& operator++() { return *this += 1; }
  JsonIterator& operator--() { return *this -= 1; }
  JsonIterator operator++(int) { return std::exchange(*this, *this + 1); }
  JsonIterator operator--(int) { return std::exchange(*this, *this - 1); }
  friend JsonIterator operator+(JsonIterator i, difference_type n) { return i += n; }
  friend JsonIterator operator+(difference_type n, JsonIterator i) { return i += n; }
  friend JsonIterator operator-(JsonIterator i, difference_type n) { return i -= n; }
  friend difference_type operator-(JsonIterator a, JsonIterator b) {
    return a.member_ != nullptr ? a.member_ - b.member_ : a.element_ - b.element_;
  }
  friend bool operator==(JsonIterator, JsonIterator) = default;
  friend auto operator<=>(JsonIterator a, JsonIterator b) { return a - b <=> 0; }

 private:
  Value* element_ = nullptr;
  Member* member_ = nullptr;
};

template <class T>
T Json::get() const {
  if constexpr (std::same_as<T, Json>) return *this;
  else if constexpr (std::same_as<T, bool>) {
    if (type_ != Type::kBoolean) throw_wrong_type("boolean");
    return boolean_;
  } else if constexpr (std::is_arithmetic_v<T>) return number<T>();
  else if constexpr (std::same_as<T, std::string>) return string();
  else {
    if (type_ != Type::kArray) throw_wrong_type("array");
    T values;
    values.reserve(array_->size());
    for (const Json& value : *array_) values.push_back(value.get<typename T::value_type>());
    return values;
  }
}

template <class T>
T Json::number() const {
  switch (type_) {
    case Type::kInteger:
      return static_cast<T>(integer_);
    case Type::kUnsigned:
      return static_cast<T>(unsigned_);
    case Type::kReal:
      return static_cast<T>(real_);
    default:
      throw_wrong_type("number");
  }
}

/// Parses `text`. Throws UserError "<where>: not valid JSON: <what and where>". Also refuses more
/// than 200 levels of nesting, more than 20,000 keys in one object, and many objects of nearly that
/// size (progress.bounded-work), and values that take more than `max_bytes` of memory, not counting
/// the characters of strings. If an object has equal keys, the last one counts, as in Python.
Json parse_json(std::string_view text, const std::string& where,
                size_t max_bytes = std::numeric_limits<size_t>::max());

/// Parses JSON with more keys than parse_json() reads, for example the header of a file of weights.
/// The members of objects are sorted by their keys. Throws UserError, also if an object has a key
/// twice (one of the two values would be hidden), for more than 8 levels of nesting, for a key of
/// more than 4096 bytes, and for more than `max_values` keys and values in total
/// (progress.bounded-work).
Json parse_sorted_json(std::string_view text, const std::string& where, size_t max_values);

/// A value from a file for a message: printable, in one line, and shortened if it is long.
std::string printable(const Json& value);

/// The number that a client means by a value: texts such as "5" or "0.7" become numbers, and 5.0
/// becomes a whole number. Other values stay as they are.
Json as_number(const Json& value);

/// The JSON text without a newline at its end: in one line, or, if `indent` is not negative, with a
/// line for each value, indented by that many spaces for each level. Bytes that are not valid UTF-8
/// become U+FFFD.
std::string dump_json(const Json& json, int indent = -1);

/// Appends the text in quotes. Control characters, quotes and backslashes are escaped, so the
/// result has no newline; with `ascii` also every character that is not printable ASCII. Bytes that
/// are not valid UTF-8 become U+FFFD.
void append_json_string(std::string& to, std::string_view utf8, bool ascii = false);

}  // namespace nanovllm
