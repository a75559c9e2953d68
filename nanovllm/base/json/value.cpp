#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

namespace {

std::partial_ordering compare_numbers(std::integral auto a, std::integral auto b) {
  if (std::cmp_equal(a, b)) return std::partial_ordering::equivalent;
  return std::cmp_less(a, b) ? std::partial_ordering::less : std::partial_ordering::greater;
}
std::partial_ordering compare_numbers(auto a, auto b) {
  return static_cast<double>(a) <=> static_cast<double>(b);
}

/// The place of the value's type in the order of types.
int rank_of(const Json& json) {
  return json.is_null()      ? 0
         : json.is_boolean() ? 1
         : json.is_number()  ? 2
         : json.is_object()  ? 3
         : json.is_array()   ? 4
                             : 5;
}

}  // namespace

Json::Json(std::string text) : type_(Type::kString), string_(new std::string(std::move(text))) {}
Json::Json(Array values) : type_(Type::kArray), array_(new Array(std::move(values))) {}

Json::Json(std::initializer_list<JsonItem> items) {
  const bool is_object = std::ranges::all_of(items, [](const JsonItem& item) {
    const Json& pair = item.value_;
    return pair.is_array() && pair.size() == 2 && pair[0].is_string();
  });
  *this = is_object ? object(items) : array(items);
}

Json Json::array(std::initializer_list<JsonItem> items) {
  Array values;
  values.reserve(items.size());
  for (const JsonItem& item : items) values.push_back(std::move(item.value_));
  return values;
}

Json Json::object(std::initializer_list<JsonItem> items) {
  Json json;
  json.object_ = new Object();
  json.type_ = Type::kObject;
  json.object_->reserve(items.size());
  for (const JsonItem& item : items)
    json.emplace(item.value_.at(0).string(), std::move(item.value_.at(1)));
  return json;
}

Json::Json(const Json& other) : type_(other.type_), unsigned_(other.unsigned_) {
  if (is_string()) string_ = new std::string(*other.string_);
  else if (is_array()) array_ = new Array(*other.array_);
  else if (is_object()) object_ = new Object(*other.object_);
}

Json::Json(Json&& other) noexcept
    : type_(std::exchange(other.type_, Type::kNull)),
      unsigned_(std::exchange(other.unsigned_, 0)) {}

Json& Json::operator=(Json other) noexcept {
  std::swap(type_, other.type_);
  std::swap(unsigned_, other.unsigned_);
  return *this;
}

// NOLINTBEGIN(clang-analyzer-cplusplus.NewDelete): it does not follow a union that was exchanged.
Json::~Json() {
  if (is_string()) delete string_;
  else if (is_array()) delete array_;
  else if (is_object()) delete object_;
}
// NOLINTEND(clang-analyzer-cplusplus.NewDelete)

const char* Json::type_name() const {
  static constexpr const char* kNames[] = {"null",   "boolean", "number",
                                           "object", "array",   "string"};
  return kNames[rank_of(*this)];
}

void Json::throw_wrong_type(const char* needed) const {
  throw std::logic_error(fmt::format("a JSON {} where a {} is needed", type_name(), needed));
}

const std::string& Json::string() const {
  if (!is_string()) throw_wrong_type("string");
  return *string_;
}
std::string& Json::string() { return const_cast<std::string&>(std::as_const(*this).string()); }

size_t Json::size() const {
  return is_array() ? array_->size() : is_object() ? object_->size() : is_null() ? 0 : 1;
}

void Json::clear() {
  if (is_array()) array_->clear();
  else if (is_object()) object_->clear();
  else throw_wrong_type("list or object");
}

// A text, number or boolean is a list of itself, as it is in nlohmann's library.
Json::iterator Json::begin() {
  if (is_array()) return iterator(array_->data());
  return is_object() ? iterator(object_->data()) : iterator(this);
}
Json::iterator Json::end() { return begin() + static_cast<std::ptrdiff_t>(size()); }
Json::const_iterator Json::begin() const { return const_cast<Json*>(this)->begin(); }
Json::const_iterator Json::end() const { return const_cast<Json*>(this)->end(); }

Json* Json::find_member(std::string_view key) const {
  if (!is_object()) return nullptr;
  const auto found = std::ranges::find(*object_, key, &Member::key);
  return found == object_->end() ? nullptr : &found->value;
}

bool Json::contains(std::string_view key) const { return find_member(key) != nullptr; }

Json::iterator Json::find(std::string_view key) {
  if (!is_object()) return end();
  const auto found = std::ranges::find(*object_, key, &Member::key);
  return begin() + (found - object_->begin());
}
Json::const_iterator Json::find(std::string_view key) const {
  return const_cast<Json*>(this)->find(key);
}

Json::Object& Json::items() { return const_cast<Object&>(std::as_const(*this).items()); }
const Json::Object& Json::items() const {
  static const Object kNone;
  if (is_null()) return kNone;
  if (!is_object()) throw_wrong_type("object");
  return *object_;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) *this = object();
  if (!is_object()) throw_wrong_type("object");
  if (Json* const found = find_member(key)) return *found;
  return object_->emplace_back(std::string(key), Json()).value;
}
const Json& Json::operator[](std::string_view key) const {
  static const Json kNull = nullptr;
  const Json* const found = find_member(key);
  return found != nullptr ? *found : kNull;
}

const Json& Json::at(std::string_view key) const {
  const Json* const found = find_member(key);
  if (found == nullptr)
    throw std::logic_error(fmt::format("a JSON {} without {}", type_name(), key));
  return *found;
}
Json& Json::at(std::string_view key) { return const_cast<Json&>(std::as_const(*this).at(key)); }

bool Json::emplace(std::string_view key, Json value) {
  if (contains(key)) return false;
  (*this)[key] = std::move(value);
  return true;
}

void Json::update(const Json& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}

size_t Json::erase(std::string_view key) {
  return is_object() ? std::erase_if(*object_, [&](const Member& m) { return m.key == key; }) : 0;
}

const Json& Json::at(size_t index) const {
  if (!is_array()) throw_wrong_type("array");
  check(index < array_->size(), "element {} of {}", index, array_->size());
  return (*array_)[index];
}
Json& Json::at(size_t index) { return const_cast<Json&>(std::as_const(*this).at(index)); }
Json& Json::operator[](size_t index) { return at(index); }
const Json& Json::operator[](size_t index) const { return at(index); }

Json& Json::front() { return at(0); }
Json& Json::back() { return at(size() - 1); }
const Json& Json::front() const { return at(0); }
const Json& Json::back() const { return at(size() - 1); }

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  if (!is_array()) throw_wrong_type("array");
  array_->push_back(std::move(value));
}

void Json::insert(iterator before, Json value) {
  if (!is_array()) throw_wrong_type("array");
  array_->insert(array_->begin() + (before - begin()), std::move(value));
}

void Json::erase(size_t index) { erase(begin() + static_cast<std::ptrdiff_t>(index)); }

Json::iterator Json::erase(iterator at) {
  const auto index = at - begin();
  if (is_object()) object_->erase(object_->begin() + index);
  else if (is_array()) array_->erase(array_->begin() + index);
  else throw_wrong_type("list or object");
  return begin() + index;
}

bool Json::equals(const Json& other) const {
  if (is_number() && other.is_number()) return std::is_eq(compare(other));
  if (type_ != other.type_) return false;
  if (is_boolean()) return boolean_ == other.boolean_;
  if (is_string()) return *string_ == *other.string_;
  if (is_array()) return *array_ == *other.array_;
  if (is_object()) return *object_ == *other.object_;
  return true;
}

std::partial_ordering Json::compare(const Json& other) const {
  const auto with = [&](auto a) {
    return other.type_ == Type::kInteger    ? compare_numbers(a, other.integer_)
           : other.type_ == Type::kUnsigned ? compare_numbers(a, other.unsigned_)
                                            : compare_numbers(a, other.real_);
  };
  if (rank_of(*this) != rank_of(other)) return rank_of(*this) <=> rank_of(other);
  switch (type_) {
    case Type::kNull:
      return std::partial_ordering::equivalent;
    case Type::kBoolean:
      return boolean_ <=> other.boolean_;
    case Type::kInteger:
      return with(integer_);
    case Type::kUnsigned:
      return with(unsigned_);
    case Type::kReal:
      return with(real_);
    case Type::kString:
      return *string_ <=> *other.string_;
    case Type::kArray:
      return *array_ <=> *other.array_;
    case Type::kObject:
      break;
  }
  return std::lexicographical_compare_three_way(
      object_->begin(), object_->end(), other.object_->begin(), other.object_->end(),
      [](const Member& a, const Member& b) -> std::partial_ordering {
        if (a.key != b.key) return a.key <=> b.key;
        return a.value <=> b.value;
      });
}

std::string Json::dump(int indent) const { return dump_json(*this, indent); }

}  // namespace nanovllm
