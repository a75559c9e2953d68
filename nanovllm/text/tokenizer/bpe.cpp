#include "nanovllm/text/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "nanovllm/base/check.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

// Above this many symbols the quadratic scan gives way to a heap.
constexpr size_t kMaxScanned = 48;

// What SentencePiece writes for a space.
constexpr std::string_view kSpaceSymbol = "\u2581";

// The alphabet's code points are below 0x144: printable Latin-1 characters stand for themselves,
// the other bytes in their order for U+0100 and on.
constexpr std::array<int16_t, 0x144> kByteOfChar = [] {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    bytes[static_cast<size_t>(itself ? b : next++)] = static_cast<int16_t>(b);
  }
  return bytes;
}();

// Where a space symbol follows another character, behind the one at `from`.
size_t inner_space(std::string_view text, size_t from) {
  for (size_t at = from; (at = text.find(kSpaceSymbol, at + 1)) != std::string_view::npos;)
    if (!text.substr(0, at).ends_with(kSpaceSymbol)) return at;
  return std::string_view::npos;
}

// Fibonacci hashing (Knuth, volume 3, section 6.4).
uint64_t hash_of(uint64_t pair) { return pair * 0x9E3779B97F4A7C15; }

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

bool append_spelled_bytes(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  const char* const end = token.data() + token.size();
  for (const char* p = token.data(); p < end;) {
    const char32_t c = next_code_point(p);
    if (c >= kByteOfChar.size() || kByteOfChar[c] < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(kByteOfChar[c]);
  }
  return true;
}

Bpe::Bpe(const TokenizerJson& json, bool byte_level, const std::string& where)
    : byte_level_(byte_level),
      merges_(table_size(json.merges.size())),
      merge_shift_(table_shift(merges_.size())) {
  const Json& model = field(json.fields, "model", where);
  const std::string here = where + ": model";
  require(model.is_object(), "{}: must be an object", here);
  // Files from before the type was written hold BPE.
  const std::string type = model.contains("type") ? string_field(model, "type", here) : "BPE";
  require(type == "BPE", "{}: '{}' is not supported; BPE is", here, type);
  require(!json.vocab.empty(), "{}: no vocab", here);
  for (const char* unsupported : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json value = model.value(unsupported, Json());
    const bool is_off =
        value.is_null() || value == 0.0 || (value.is_string() && value.get<std::string>().empty());
    require(is_off, "{}: {} is not supported", here, unsupported);
  }
  // In the byte-level alphabet nothing is left to fall back from.
  byte_fallback_ = bool_field(model, "byte_fallback", false, here) && !byte_level;
  fuse_unk_ = bool_field(model, "fuse_unk", false, here);
  ignore_merges_ = bool_field(model, "ignore_merges", false, here);

  add_tokens(json, here);
  splits_at_spaces_ = !byte_level && !ignore_merges_ && tokens_.find(kSpaceSymbol) >= 0;
  add_merges(json, here);
  if (const Json unk = model.value("unk_token", Json()); !unk.is_null()) {
    unk_ = token_to_id(string_field(model, "unk_token", here));
    require(unk_ >= 0 || byte_level, "{}: unk_token '{}' is not in the vocab", here,
            unk.get<std::string>());
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    symbol_of_byte_[byte] = tokens_.find({&c, 1});
    fallback_of_byte_[byte] = tokens_.find(fmt::format("<0x{:02X}>", byte));
  }
}

bool Bpe::append_bytes(std::string_view token, std::string& bytes) const {
  if (byte_level_) return append_spelled_bytes(token, bytes);
  bytes += token;
  return true;
}

void Bpe::add_tokens(const TokenizerJson& json, const std::string& where) {
  std::string bytes;
  std::vector<TokenTable::Span> spans;
  std::vector<int32_t> ids;
  int32_t max_id = 0;
  for (const auto& [token, id] : json.vocab) {
    const auto begin = static_cast<uint32_t>(bytes.size());
    max_id = std::max(max_id, id);
    if (!append_bytes(token, bytes)) {
      unspelled_.emplace(token, id);
      continue;
    }
    spans.push_back({begin, static_cast<uint32_t>(bytes.size()) - begin});
    ids.push_back(id);
  }
  tokens_ = TokenTable(std::move(bytes), spans, ids);
  require(tokens_.size() + unspelled_.size() == json.vocab.size(),
          "{}: vocab holds {} tokens twice", where,
          json.vocab.size() - tokens_.size() - unspelled_.size());
  direct_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(max_id) + 1);
}

void Bpe::add_merges(const TokenizerJson& json, const std::string& where) {
  std::string bytes;
  std::vector<TokenTable::Span> spans;  // for each merge the left token, the right one, and both
  for (const auto& [left, right] : json.merges) {
    const auto begin = static_cast<uint32_t>(bytes.size());
    const bool spelled = append_bytes(left, bytes);
    const auto middle = static_cast<uint32_t>(bytes.size());
    require(spelled && append_bytes(right, bytes),
            "{}: the merge of '{}' and '{}' is not spelled in the byte-level alphabet", where, left,
            right);
    const auto end = static_cast<uint32_t>(bytes.size());
    for (const auto& [from, to] : {std::pair(begin, middle), {middle, end}, {begin, end}})
      spans.push_back({from, to - from});
    splits_at_spaces_ &=
        inner_space(std::string_view(bytes).substr(begin), 0) == std::string_view::npos;
  }
  const std::vector<int32_t> ids = tokens_.find_all(bytes, spans);
  const auto pair = [&](size_t rank) { return pair_of(ids[3 * rank], ids[3 * rank + 1]); };
  const auto fetch = [&](size_t rank) {
    __builtin_prefetch(&merges_[hash_of(pair(rank)) >> merge_shift_]);
  };
  for_each_fetched(json.merges.size(), fetch, [&](size_t rank) {
    const int32_t id = ids[3 * rank + 2];
    require(ids[3 * rank] >= 0 && ids[3 * rank + 1] >= 0 && id >= 0,
            "{}: the merge of '{}' and '{}' names a token that is not in the vocab", where,
            json.merges[rank].first, json.merges[rank].second);
    merges_[merge_slot(pair(rank))] = {pair(rank),
                                       uint64_t{rank} << 32 | static_cast<uint32_t>(id)};
  });
}

int32_t Bpe::token_to_id(std::string_view token) const {
  std::string bytes;
  if (!byte_level_) return tokens_.find(token);
  if (append_spelled_bytes(token, bytes)) return tokens_.find(bytes);
  const auto found = unspelled_.find(std::string(token));
  return found == unspelled_.end() ? -1 : found->second;
}

size_t Bpe::merge_slot(uint64_t pair) const {
  size_t i = hash_of(pair) >> merge_shift_;
  while (merges_[i].pair != pair && merges_[i].pair != kNone) i = (i + 1) & (merges_.size() - 1);
  return i;
}

uint64_t Bpe::merge_of(int32_t left, int32_t right) const {
  return merges_[merge_slot(pair_of(left, right))].value;
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
  else if (word.size() <= kMaxScanned) merge_short(word, ids);
  else merge_long(word, ids);
}

bool Bpe::is_direct(int32_t id, std::string_view piece) const {
  std::atomic<uint8_t>& known = direct_[static_cast<size_t>(id)];
  uint8_t direct = known.load(std::memory_order_relaxed);
  if (direct == kUnknown) {
    std::vector<int32_t> ids;
    piece.size() <= kMaxScanned ? merge_short(piece, ids) : merge_long(piece, ids);
    direct = ids.size() == 1 && ids[0] == id ? kYes : kNo;
    known.store(direct, std::memory_order_relaxed);
  }
  return direct == kYes;
}

size_t Bpe::first_symbols(std::string_view piece, int32_t* symbols) const {
  size_t n = 0;
  bool unk_pending = false;
  const auto flush_unk = [&] {
    if (unk_pending) symbols[n++] = unk_;
    unk_pending = false;
  };
  for (size_t i = 0, len = 0; i < piece.size(); i += len) {
    len = byte_level_ ? 1 : static_cast<size_t>(utf8_len(piece[i]));
    const std::string_view character = piece.substr(i, len);
    const int32_t id =
        len == 1 ? symbol_of_byte_[static_cast<unsigned char>(piece[i])] : tokens_.find(character);
    const auto fallback = [&](char c) { return fallback_of_byte_[static_cast<unsigned char>(c)]; };
    if (id >= 0) {
      flush_unk();
      symbols[n++] = id;
    } else if (byte_fallback_ && std::all_of(character.begin(), character.end(),
                                             [&](char c) { return fallback(c) >= 0; })) {
      // An unk token that is pending stays so, behind these: that is how `tokenizers` does it.
      for (const char c : character) symbols[n++] = fallback(c);
    } else if (unk_ >= 0) {
      if (!fuse_unk_) flush_unk();
      unk_pending = true;
    }
  }
  flush_unk();
  return n;
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbols[kMaxScanned];
  uint64_t merges[kMaxScanned];  // merges[i]: of symbols i and i + 1
  size_t n = first_symbols(piece, symbols);
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

void Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  std::vector<int32_t> symbols(piece.size());
  const size_t n = first_symbols(piece, symbols.data());
  // A list of symbols, linked by index; the right one of a merged pair leaves it. value[i]: the
  // merge of i and next[i].
  std::vector<uint32_t> previous(n), next(n);
  std::vector<uint64_t> value(n, kNone);
  std::vector<uint64_t> candidates;  // rank << 32 | index
  const auto rank_at = [](uint64_t merge, size_t i) { return (merge >> 32 << 32) | i; };
  for (size_t i = 0; i < n; ++i) {
    previous[i] = static_cast<uint32_t>(i - 1);
    next[i] = static_cast<uint32_t>(i + 1);
    if (i + 1 < n) value[i] = merge_of(symbols[i], symbols[i + 1]);
    if (value[i] != kNone) candidates.push_back(rank_at(value[i], i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                             std::move(candidates));
  const auto update = [&](uint32_t i) {
    value[i] = next[i] < n ? merge_of(symbols[i], symbols[next[i]]) : kNone;
    if (value[i] != kNone) queue.push(rank_at(value[i], i));
  };
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto i = static_cast<uint32_t>(top);
    if (value[i] == kNone || rank_at(value[i], i) != top) continue;  // the pair is no more
    const uint32_t gone = next[i];
    symbols[i] = static_cast<int32_t>(value[i] & 0xFFFFFFFF);
    value[gone] = kNone;
    next[i] = next[gone];
    if (next[i] < n) previous[next[i]] = i;
    update(i);
    if (i > 0) update(previous[i]);
  }
  for (uint32_t i = 0; i < n; i = next[i]) ids.push_back(symbols[i]);
}

}  // namespace nanovllm
