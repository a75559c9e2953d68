#include "nanovllm/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/tokenizer_json.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

bool is_space_at(std::string_view text, size_t at) {
  return (CharTable::get()[code_point_at(text.data() + at)] & kSpace) != 0;
}

bool continues_word(std::string_view before, std::string_view after) {
  return (!before.empty() && is_word_char(code_point_at(&before[last_char(before)]))) ||
         (!after.empty() && is_word_char(code_point_at(after.data())));
}

unsigned char byte_of(char c) { return static_cast<unsigned char>(c); }

AddedToken read_added_token(const JsonObject& json, int32_t id) {
  return {.id = id,
          .content = json.string("content"),
          .single_word = json.flag("single_word", false),
          .lstrip = json.flag("lstrip", false),
          .rstrip = json.flag("rstrip", false),
          .normalized = json.flag("normalized", true),
          .special = json.flag("special", false)};
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const TokenizerJson& json) {
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string, size_t> index_of;
  const auto add = [&](AddedToken token) {
    if (token.content.empty()) return;
    const auto [place, is_new] = index_of.try_emplace(token.content, tokens.size());
    if (is_new) tokens.push_back(token);
    AddedToken& same = tokens[place->second];
    require(same.id == token.id, "{}: added token '{}' has two ids, {} and {}", json.where,
            token.content, same.id, token.id);
    same = std::move(token);
  };
  const Json list = json.fields.value("added_tokens", Json::array());
  require(list.is_null() || list.is_array(), "{}: added_tokens: must be a list", json.where);
  for (const Json& element : list) {
    const JsonObject token{element, json.where + ": added_tokens"};
    add(read_added_token(token, token.token_id(token.at("id"))));
  }
  const Json decoder = json.config.value("added_tokens_decoder", Json::object());
  const std::string where = json.where + ": added_tokens_decoder of tokenizer_config.json";
  require(decoder.is_object(), "{}: must be an object", where);
  for (const auto& [key, token] : decoder.items()) {
    uint32_t id = 0;
    const char* const end = key.data() + key.size();
    require(std::from_chars(key.data(), end, id).ptr == end && !key.empty() && id < kMaxTokens,
            "{}: '{}' is no id of 0 to {}", where, key, kMaxTokens - 1);
    add(read_added_token({token, where}, static_cast<int32_t>(id)));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), children_(0) {
  size_t num_bytes = 0;
  for (const AddedToken& token : tokens_) num_bytes += token.content.size();
  require(num_bytes <= kMaxBytes, "added_tokens: {} bytes to search for; at most {} are supported",
          num_bytes, kMaxBytes);
  children_ = FlatMap(num_bytes);
  struct Edge {
    size_t depth;
    uint32_t parent, child;
    char byte;
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    if (content.empty()) continue;
    is_last_[byte_of(content.back())] = true;
    uint32_t node = 0;
    for (size_t depth = 0; depth < content.size(); ++depth) {
      const char byte = content[content.size() - 1 - depth];
      uint64_t& child = children_[FlatMap::pair(node, byte_of(byte))];
      if (child == FlatMap::kNone) {
        child = nodes_.size();
        edges.push_back({depth, node, static_cast<uint32_t>(child), byte});
        nodes_.push_back({});
      }
      node = static_cast<uint32_t>(child);
    }
    // If tokens are equal after normalization, the first one counts.
    if (nodes_[node].token == kNoToken) nodes_[node].token = static_cast<int32_t>(i);
  }
  // A node's suffix is less deep than the node, so it is finished before.
  std::ranges::sort(edges, {}, &Edge::depth);
  for (const auto& [depth, parent, child, byte] : edges) {
    if (parent != 0) nodes_[child].fail = next(nodes_[parent].fail, byte);
    if (nodes_[child].token == kNoToken) nodes_[child].token = nodes_[nodes_[child].fail].token;
  }
}

uint32_t AddedTokenFinder::next(uint32_t node, char byte) const {
  for (;; node = nodes_[node].fail) {
    const uint64_t child = children_.find(FlatMap::pair(node, byte_of(byte)));
    if (child != FlatMap::kNone) return static_cast<uint32_t>(child);
    if (node == 0) return 0;
  }
}

std::vector<AddedTokenFinder::Start> AddedTokenFinder::starts(std::string_view text) const {
  std::vector<Start> starts;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    if (node == 0 && !is_last_[byte_of(text[at])]) continue;
    node = next(node, text[at]);
    if (const int32_t token = nodes_[node].token; token != kNoToken)
      starts.push_back({static_cast<uint32_t>(at), token});
  }
  return starts;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0, next = 0;
  size_t spaces_end = 0;  // the end of the white space that the last token has included
  const std::vector<Start> starts = this->starts(text);
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (start->at < next) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(start->token)];
    size_t begin = start->at;
    size_t end = next = begin + token.content.size();
    if (token.single_word && continues_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip)
      for (size_t c; begin > done && is_space_at(text, c = last_char(text.substr(0, begin)));)
        begin = c;
    if (token.rstrip) {
      // White space may contain tokens that include the rest of it too, so it is read only once.
      if (end < spaces_end) end = spaces_end;
      while (end < text.size() && is_space_at(text, end))
        end += static_cast<size_t>(utf8_len(text[end]));
      spaces_end = end;
    }
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace nanovllm
