#include "nanovllm/text/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/byte_alphabet.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

namespace {

// Up to this many bytes, scanning all pairs for the lowest rank is faster than a heap.
constexpr size_t kMaxScanned = 48;

constexpr uint64_t kNone = FlatMap::kNone;

// The character that SentencePiece writes for a space.
constexpr std::string_view kSpaceSymbol = "\u2581";

// The first place after `from` where a space symbol follows another character.
size_t inner_space(std::string_view text, size_t from) {
  for (size_t at = from; (at = text.find(kSpaceSymbol, at + 1)) != std::string_view::npos;)
    if (!text.substr(0, at).ends_with(kSpaceSymbol)) return at;
  return std::string_view::npos;
}

uint64_t pair_of(int32_t left, int32_t right) {
  return FlatMap::pair(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
}

// The most bytes of an affix. Each character of a word has the affixes, so longer ones would take
// long.
constexpr size_t kMaxAffixBytes = 16;

// A string of the model that is empty if it is null or missing.
std::string read_affix(const TokenizerJson& json, const char* key) {
  const Json model = json.fields.value("model", Json());
  if (!model.is_object() || model.value(key, Json()).is_null()) return {};
  std::string affix = JsonObject{model, json.where + ": model"}.string(key);
  require(affix.size() <= kMaxAffixBytes, "{}: model: {} has more than {} bytes", json.where, key,
          kMaxAffixBytes);
  return affix;
}

}  // namespace

bool Bpe::takes_bytes(const TokenizerJson& json) {
  const Json model = json.fields.value("model", Json());
  return read_affix(json, "continuing_subword_prefix").empty() &&
         read_affix(json, "end_of_word_suffix").empty() &&
         !(model.is_object() && model.value("byte_fallback", Json()) == true);
}

Bpe::Bpe(const TokenizerJson& json, bool byte_level)
    : byte_level_(byte_level),
      prefix_(read_affix(json, "continuing_subword_prefix")),
      suffix_(read_affix(json, "end_of_word_suffix")),
      tokens_(read_vocab(json)),
      merges_(read_merges(json)) {
  const JsonObject model = JsonObject{json.fields, json.where}.object("model");
  require(model.json.is_object(), "{}: must be an object", model.where);
  // Files older than the field "type" hold BPE.
  const std::string type = model.json.contains("type") ? model.string("type") : "BPE";
  require(type == "BPE", "{}: '{}' is not supported; BPE is", model.where, type);
  require(!json.vocab.empty(), "{}: no vocab", model.where);
  const Json dropout = model.json.value("dropout", Json());
  require(dropout.is_null() || dropout == 0.0, "{}: dropout is not supported", model.where);
  byte_fallback_ = model.flag("byte_fallback", false);
  fuse_unk_ = model.flag("fuse_unk", false);
  ignore_merges_ = model.flag("ignore_merges", false);

  const auto joins_words = [](const TokenizerJson::Merge& merge) {
    return merge.second.starts_with(kSpaceSymbol) && !merge.first.ends_with(kSpaceSymbol);
  };
  splits_at_spaces_ = !byte_level && !ignore_merges_ && prefix_.empty() && suffix_.empty() &&
                      tokens_.find(kSpaceSymbol) >= 0 &&
                      std::ranges::none_of(json.merges, joins_words);
  if (const Json unk = model.json.value("unk_token", Json()); !unk.is_null()) {
    unk_ = token_to_id(model.string("unk_token"));
    require(unk_ >= 0 || byte_level, "{}: unk_token '{}' is not in the vocab", model.where,
            model.string("unk_token"));
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    symbol_of_byte_[byte] = tokens_.find({&c, 1});
    fallback_of_byte_[byte] = tokens_.find(fmt::format("<0x{:02X}>", byte));
  }
  const auto last = std::ranges::max_element(json.vocab, {}, &TokenizerJson::Token::id);
  direct_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(last->id) + 1);
}

// A token that the alphabet does not spell, for example a special token with a space, comes after a
// byte 0xFF: no piece has that byte, because pieces are well-formed UTF-8.
void Bpe::append_bytes(std::string_view token, std::string& bytes) const {
  if (byte_level_ && append_spelled_bytes(token, bytes)) return;
  if (byte_level_) bytes += '\xFF';
  bytes += token;
}

TokenTable Bpe::read_vocab(const TokenizerJson& json) const {
  size_t num_bytes = 0;
  for (const auto& [token, id] : json.vocab) num_bytes += token.size() + 1;
  std::string bytes;
  bytes.reserve(num_bytes);  // so that the views stay valid
  std::vector<std::string_view> tokens;
  std::vector<int32_t> ids;
  for (const auto& [token, id] : json.vocab) {
    const size_t begin = bytes.size();
    append_bytes(token, bytes);
    tokens.push_back(std::string_view(bytes).substr(begin));
    ids.push_back(id);
  }
  TokenTable table(tokens, ids);
  require(table.size() == tokens.size(), "{}: model: vocab contains {} tokens twice", json.where,
          tokens.size() - table.size());
  return table;
}

FlatMap Bpe::read_merges(const TokenizerJson& json) const {
  size_t num_bytes = 0;
  for (const auto& [left, right] : json.merges) num_bytes += 2 * (left.size() + right.size() + 1);
  std::string bytes;
  bytes.reserve(num_bytes);              // so that the views stay valid
  std::vector<std::string_view> tokens;  // for each merge the left token, the right one, and both
  for (const auto& [left, right] : json.merges) {
    const size_t begin = bytes.size();
    append_bytes(left, bytes);
    const size_t middle = bytes.size();
    append_bytes(right, bytes);
    const size_t right_end = bytes.size();
    size_t both = begin;
    if (!prefix_.empty()) {  // the merged token has only the prefix of the left one
      require(right.size() >= prefix_.size(), "{}: model: '{}' of a merge is shorter than '{}'",
              json.where, right, prefix_);
      both = bytes.size();
      bytes.append(left).append(right.substr(prefix_.size()));
    }
    const std::string_view view = bytes;
    tokens.push_back(view.substr(begin, middle - begin));
    tokens.push_back(view.substr(middle, right_end - middle));
    tokens.push_back(view.substr(both));
  }
  const std::vector<int32_t> ids = tokens_.find_all(tokens);
  std::vector<uint64_t> pairs(json.merges.size());
  for (size_t rank = 0; rank < pairs.size(); ++rank)
    pairs[rank] = pair_of(ids[3 * rank], ids[3 * rank + 1]);
  FlatMap merges(pairs.size());
  merges.for_each(pairs, [&](size_t rank) {
    const auto& [left, right] = json.merges[rank];
    require(*std::min_element(&ids[3 * rank], &ids[3 * rank] + 3) >= 0,
            "{}: model: the merge of '{}' and '{}' names a token that is not in the vocab",
            json.where, left, right);
    merges[pairs[rank]] =
        FlatMap::pair(static_cast<uint32_t>(rank), static_cast<uint32_t>(ids[3 * rank + 2]));
  });
  return merges;
}

int32_t Bpe::token_to_id(std::string_view token) const {
  std::string bytes;
  append_bytes(token, bytes);
  return tokens_.find(bytes);
}

uint64_t Bpe::merge_of(int32_t left, int32_t right) const {
  return merges_.find(pair_of(left, right));
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  size_t begin = 0;
  if (splits_at_spaces_)
    for (size_t at; (at = inner_space(piece, begin)) != std::string_view::npos; begin = at)
      encode_word(piece.substr(begin, at - begin), ids);
  encode_word(piece.substr(begin), ids);
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  const int32_t id = tokens_.find(word);
  if (id >= 0 && (ignore_merges_ || is_direct(id, word))) ids.push_back(id);
  else merge(word, ids);
}

bool Bpe::is_direct(int32_t id, std::string_view word) const {
  std::atomic<uint8_t>& known = direct_[static_cast<size_t>(id)];
  uint8_t direct = known.load(std::memory_order_relaxed);
  if (direct == kUnknown) {
    std::vector<int32_t> ids;
    merge(word, ids);
    direct = ids.size() == 1 && ids[0] == id ? kYes : kNo;
    known.store(direct, std::memory_order_relaxed);
  }
  return direct == kYes;
}

size_t Bpe::max_symbols(std::string_view word) const {
  return byte_fallback_ ? word.size() * (1 + prefix_.size()) + suffix_.size() : word.size();
}

size_t Bpe::first_symbols(std::string_view word, int32_t* symbols) const {
  size_t n = 0;
  bool unk_pending = false;
  const auto flush_unk = [&] {
    if (unk_pending) symbols[n++] = unk_;
    unk_pending = false;
  };
  std::string affixed;
  for (size_t i = 0, len = 0; i < word.size(); i += len) {
    len = byte_level_ ? 1 : static_cast<size_t>(utf8_len(word[i]));
    std::string_view character = word.substr(i, len);
    if (const bool is_last = i + len == word.size();
        (i > 0 && !prefix_.empty()) || (is_last && !suffix_.empty())) {
      affixed.assign(i > 0 ? prefix_ : "").append(character).append(is_last ? suffix_ : "");
      character = affixed;
    }
    const int32_t id = character.size() == 1
                           ? symbol_of_byte_[static_cast<unsigned char>(character[0])]
                           : tokens_.find(character);
    const auto fallback = [&](char c) { return fallback_of_byte_[static_cast<unsigned char>(c)]; };
    if (id >= 0) {
      flush_unk();
      symbols[n++] = id;
    } else if (byte_fallback_ &&
               std::ranges::all_of(character, [&](char c) { return fallback(c) >= 0; })) {
      // An unk token that is pending comes after these bytes, as with `tokenizers`.
      for (const char c : character) symbols[n++] = fallback(c);
    } else if (unk_ >= 0) {
      if (!fuse_unk_) flush_unk();
      unk_pending = true;
    }
  }
  flush_unk();
  return n;
}

void Bpe::merge(std::string_view word, std::vector<int32_t>& ids) const {
  if (max_symbols(word) > kMaxScanned) return merge_long(word, ids);
  int32_t symbols[kMaxScanned];
  uint64_t merges[kMaxScanned];  // merges[i] is the merge of symbols i and i + 1
  size_t n = first_symbols(word, symbols);
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (merges[i] < merges[best]) best = i;
    if (merges[best] == kNone) break;
    symbols[best] = static_cast<int32_t>(merges[best] & 0xFFFFFFFF);
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best + 1 < n) merges[best] = merge_of(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

// merge() for long words, in O(n log n): a heap of candidates over a linked list of symbols. The
// right symbol of a merged pair leaves the list and becomes -1; candidates that are out of date are
// skipped.
void Bpe::merge_long(std::string_view word, std::vector<int32_t>& ids) const {
  require(max_symbols(word) <= UINT32_MAX, "a word of {} bytes is too long", word.size());
  std::vector<int32_t> symbols(max_symbols(word));
  const auto n = static_cast<uint32_t>(first_symbols(word, symbols.data()));
  std::vector<uint32_t> previous(n), next(n);
  // rank << 32 | index of the left symbol
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> candidates;
  const auto merge_at = [&](uint32_t i) {
    return symbols[i] < 0 || next[i] == n ? kNone : merge_of(symbols[i], symbols[next[i]]);
  };
  const auto add_candidate = [&](uint32_t i) {
    if (const uint64_t merge = merge_at(i); merge != kNone)
      candidates.push((merge >> 32 << 32) | i);
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    add_candidate(i);
  }
  while (!candidates.empty()) {
    const uint64_t rank = candidates.top() >> 32;
    const auto i = static_cast<uint32_t>(candidates.top());
    candidates.pop();
    const uint64_t merge = merge_at(i);
    if (merge == kNone || merge >> 32 != rank) continue;  // a neighbour has changed since
    symbols[i] = static_cast<int32_t>(merge & 0xFFFFFFFF);
    symbols[next[i]] = -1;
    next[i] = next[next[i]];
    if (next[i] < n) previous[next[i]] = i;
    add_candidate(i);
    if (i > 0) add_candidate(previous[i]);
  }
  for (uint32_t i = 0; i < n; i = next[i]) ids.push_back(symbols[i]);
}

}  // namespace nanovllm
