#include "nanovllm/text/grammar/schema/schema_document.h"

#include <charconv>
#include <vector>

#include "nanovllm/base/check.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxSchemaBytes = 1 << 20;
constexpr int kMaxSchemaDepth = 200;

/// Values that look like schemas but are data.
bool is_data(std::string_view keyword) {
  return keyword == "enum" || keyword == "const" || keyword == "default" || keyword == "examples";
}

std::string string_of(const Json& object, std::string_view key) {
  return object[key].is_string() ? object[key].string() : "";
}

std::string anchor_key(const Json* resource, std::string_view name) {
  return fmt::format("{} {}", static_cast<const void*>(resource), name);
}

std::string without_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// The value that a JSON pointer (RFC 6901) names; null if there is none.
const Json* follow(const Json* value, std::string_view pointer) {
  while (!pointer.empty()) {
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    std::string token(pointer.substr(1, end - 1));
    pointer.remove_prefix(end);
    replace_all(token, "~1", "/");
    replace_all(token, "~0", "~");
    size_t element = 0;
    const char* const last = token.data() + token.size();
    if (value->is_object() && value->contains(token)) value = &(*value)[token];
    else if (value->is_array() && std::from_chars(token.data(), last, element).ptr == last &&
             element < value->size())
      value = &(*value)[element];
    else return nullptr;
  }
  return value;
}

/// Adds the JSON pointer from `from` to `to`. Returns whether there is one.
bool find_pointer(const Json& from, const Json& to, std::string& pointer) {
  if (&from == &to) return true;
  if (!from.is_structured()) return false;
  const size_t len = pointer.size();
  for (auto it = from.begin(); it != from.end(); ++it) {
    std::string token = from.is_object() ? it.key() : std::to_string(it - from.begin());
    replace_all(token, "~", "~0");
    replace_all(token, "/", "~1");
    pointer += "/" + token;
    if (find_pointer(*it, to, pointer)) return true;
    pointer.resize(len);
  }
  return false;
}

}  // namespace

SchemaDocument::SchemaDocument(const Json& root, std::string where)
    : root_(root), where_(std::move(where)) {
  if (root.is_object()) {
    const std::string dialect = string_of(root, "$schema");
    for (const char* draft : {"draft-03", "draft-04", "draft-06", "draft-07"})
      is_old_ |= dialect.find(draft) != std::string::npos;
  }
  index(root, &root, 0);
  const size_t num_bytes = root.dump().size();
  require(num_bytes <= kMaxSchemaBytes, "{}: the schema has {} bytes; at most {} are supported",
          where_, num_bytes, kMaxSchemaBytes);
}

void SchemaDocument::index(const Json& value, const Json* resource, int depth) {
  require(depth <= kMaxSchemaDepth, "{}: the schema has more than {} levels", where_,
          kMaxSchemaDepth);
  if (value.is_array())
    for (const Json& element : value) index(element, resource, depth + 1);
  if (!value.is_object()) return;
  const bool has_ref = value["$ref"].is_string();
  std::string id = string_of(value, "$id");
  if (id.empty() && is_old_) id = string_of(value, "id");
  if (id.starts_with('#')) anchors_.emplace(anchor_key(resource, id.substr(1)), &value);
  else if (!id.empty() && !(is_old_ && has_ref)) {
    if (id.ends_with('#')) id.pop_back();
    if (id.find(':') != std::string::npos) ids_.emplace(id, &value);
    resource = &value;
  }
  const std::string anchor = string_of(value, "$anchor");
  if (!anchor.empty()) anchors_.emplace(anchor_key(resource, anchor), &value);
  if (has_ref) resources_.emplace(&value, resource);
  for (const auto& [key, child] : value.items())
    if (!is_data(key)) index(child, resource, depth + 1);
}

const Json& SchemaDocument::target(const Json& schema) const {
  if (!schema["$ref"].is_string()) refuse(schema, "$ref", "must be a text");
  const std::string& ref = schema["$ref"].string();
  const size_t hash = std::min(ref.find('#'), ref.size());
  const auto known = resources_.find(&schema);
  const Json* resource = known == resources_.end() ? &root_ : known->second;
  const Json*& target = targets_[anchor_key(resource, ref)];
  if (target != nullptr) return *target;
  if (hash > 0) {
    const auto it = ids_.find(ref.substr(0, hash));
    if (it == ids_.end())
      refuse(schema, "$ref",
             fmt::format("\"{}\" names another document, which is not loaded", ref));
    resource = it->second;
  }
  const std::string fragment =
      without_percent(std::string_view(ref).substr(std::min(hash + 1, ref.size())));
  const Json* found = nullptr;
  if (fragment.empty() || fragment.starts_with('/')) found = follow(resource, fragment);
  else if (const auto it = anchors_.find(anchor_key(resource, fragment)); it != anchors_.end())
    found = it->second;
  if (found == nullptr) refuse(schema, "$ref", fmt::format("\"{}\" does not exist", ref));
  target = found;
  return *found;
}

std::string SchemaDocument::place(const Json& value) const {
  std::string pointer;
  find_pointer(root_, value, pointer);
  return fmt::format("{}: #{}", where_, pointer);
}

void SchemaDocument::refuse(const Json& schema, std::string_view keyword,
                            std::string_view why) const {
  fail("{}: {} {}", place(schema), keyword, why);
}

}  // namespace nanovllm::grammar
