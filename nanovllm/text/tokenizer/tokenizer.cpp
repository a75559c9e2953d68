#include "nanovllm/text/tokenizer/tokenizer.h"

#include <charconv>
#include <unordered_map>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"
#include "nanovllm/text/tokenizer/added_tokens.h"
#include "nanovllm/text/tokenizer/bpe.h"
#include "nanovllm/text/tokenizer/detokenizer.h"
#include "nanovllm/text/tokenizer/token_texts.h"
#include "nanovllm/text/tokenizer/tokenizer_json.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

// Positions in a piece are 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// What a post-processor may add: published ones add up to three, but a part of the template may
// name a list of ids again and again.
constexpr size_t kMaxSpecialIds = 1000;

int32_t token_id(const Json& id, const std::string& where) {
  require(id.is_number_integer() && id >= 0 && id < kMaxTokens,
          "{}: an id must be an integer of 0 to {}", where, kMaxTokens - 1);
  return id.get<int32_t>();
}

AddedToken read_added_token(const Json& json, int32_t id, const std::string& where) {
  return {.id = id,
          .content = string_field(json, "content", where),
          .single_word = bool_field(json, "single_word", false, where),
          .lstrip = bool_field(json, "lstrip", false, where),
          .rstrip = bool_field(json, "rstrip", false, where),
          .normalized = bool_field(json, "normalized", true, where),
          .special = bool_field(json, "special", false, where)};
}

// tokenizer.json's added tokens and tokenizer_config.json's, which replace those of the same
// content.
std::vector<AddedToken> read_added_tokens(const Json& list, const Json& config,
                                          const std::string& where) {
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string, size_t> index;
  const auto add = [&](AddedToken token) {
    if (token.content.empty()) return;
    const auto [at, is_new] = index.try_emplace(token.content, tokens.size());
    if (is_new) {
      tokens.push_back(std::move(token));
      return;
    }
    AddedToken& same = tokens[at->second];
    require(same.id == token.id, "{}: added token '{}' has two ids, {} and {}", where,
            token.content, same.id, token.id);
    same = std::move(token);
  };
  const std::string here = where + ": added_tokens";
  require(list.is_null() || list.is_array(), "{}: must be a list", here);
  for (const Json& token : list)
    add(read_added_token(token, token_id(field(token, "id", here), here), here));
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  const std::string config_here = where + ": added_tokens_decoder of tokenizer_config.json";
  require(decoder.is_object(), "{}: must be an object", config_here);
  for (const auto& [key, token] : decoder.items()) {
    int32_t id = -1;
    const char* const end = key.data() + key.size();
    require(std::from_chars(key.data(), end, id).ptr == end && id >= 0 && id < kMaxTokens,
            "{}: '{}' is no id of 0 to {}", config_here, key, kMaxTokens - 1);
    add(read_added_token(token, id, config_here));
  }
  return tokens;
}

// What a post-processor puts before and behind the ids of a single text.
struct Template {
  std::vector<int32_t> before, behind;
};

Template read_template(const Json& json, const std::string& where) {
  Template out;
  bool has_template = false;
  for (const Json* component : components(json, "processors", where)) {
    const std::string type = string_field(*component, "type", where);
    const std::string here = fmt::format("{}: {}", where, type);
    if (type == "ByteLevel") continue;  // it changes offsets only
    require(type == "TemplateProcessing",
            "{}: '{}' is not supported; Sequence, ByteLevel and TemplateProcessing are", where,
            type);
    require(!std::exchange(has_template, true), "{}: only one is supported", here);
    const Json& single = field(*component, "single", here);
    require(single.size() <= kMaxSpecialIds, "{}: 'single' holds more than {} parts", here,
            kMaxSpecialIds);
    bool has_text = false;
    for (const Json& part : single) {
      if (part.is_object() && part.contains("Sequence")) {
        require(!std::exchange(has_text, true) && string_field(part["Sequence"], "id", here) == "A",
                "{}: 'single' must hold the sequence A once", here);
        continue;
      }
      const std::string name = string_field(field(part, "SpecialToken", here), "id", here);
      const Json& token = field(field(*component, "special_tokens", here), name.c_str(), here);
      const Json& ids = field(token, "ids", here);
      require(out.before.size() + out.behind.size() + ids.size() <= kMaxSpecialIds,
              "{}: 'single' adds more than {} ids", here, kMaxSpecialIds);
      for (const Json& id : ids) (has_text ? out.behind : out.before).push_back(token_id(id, here));
    }
    require(has_text, "{}: 'single' must hold the sequence A once", here);
  }
  return out;
}

}  // namespace

struct Tokenizer::Parts {
  Parts(const TokenizerJson& json, const Json& config, const std::string& where);

  std::optional<int32_t> token_to_id(std::string_view token) const;
  // How the text that is searched, and decoded text, has each added token.
  std::vector<std::string> spell_added() const;
  std::vector<AddedTokenFinder::Pattern> patterns(bool normalized) const;

  std::vector<AddedToken> added;
  std::unordered_map<std::string_view, int32_t> added_ids;  // by content
  Normalizer normalizer;
  std::vector<std::string> spellings;  // of the added tokens
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  Template special;
  TokenTexts texts;
  AddedTokenFinder verbatim_finder, normalized_finder;
  std::optional<int32_t> eos_token_id;
};

Tokenizer::Parts::Parts(const TokenizerJson& json, const Json& config, const std::string& where)
    : added(read_added_tokens(json.fields.value("added_tokens", Json()), config, where)),
      normalizer(json.fields.value("normalizer", Json()), where + ": normalizer"),
      spellings(spell_added()),
      pre_tokenizer(json.fields.value("pre_tokenizer", Json()), where + ": pre_tokenizer"),
      bpe(json, pre_tokenizer.byte_level(), where),
      special(
          read_template(json.fields.value("post_processor", Json()), where + ": post_processor")),
      texts(json.fields.value("decoder", Json()), where + ": decoder"),
      verbatim_finder(patterns(/*normalized=*/false)),
      normalized_finder(patterns(/*normalized=*/true)) {
  for (const auto& [token, id] : json.vocab) {
    require(!texts.contains(id), "{}: model: vocab gives '{}' the id {} of another token", where,
            token, id);
    texts.set(id, token, /*special=*/false);
  }
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    const int32_t vocab_id = bpe.token_to_id(token.content);
    require(vocab_id == token.id || (vocab_id < 0 && !texts.contains(token.id)),
            "{}: added_tokens: the id {} of '{}' is not the one in the vocab, or another token's",
            where, token.id, token.content);
    texts.set(token.id, spellings[i], token.special);
    added_ids.emplace(token.content, token.id);
  }
  // A string, or an added token written out.
  Json eos = config.value("eos_token", Json());
  if (eos.is_object()) eos = eos.value("content", Json());
  if (eos.is_string()) eos_token_id = token_to_id(eos.get<std::string>());
}

std::optional<int32_t> Tokenizer::Parts::token_to_id(std::string_view token) const {
  if (const auto found = added_ids.find(token); found != added_ids.end()) return found->second;
  const int32_t id = bpe.token_to_id(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::vector<std::string> Tokenizer::Parts::spell_added() const {
  size_t num_bytes = 0;
  for (const AddedToken& token : added) num_bytes += token.content.size();
  size_t work = max_work(num_bytes);
  std::vector<std::string> out;
  for (const AddedToken& token : added) {
    std::string storage;
    out.emplace_back(token.normalized ? normalizer.normalize(token.content, storage, work)
                                      : std::string_view(token.content));
  }
  return out;
}

std::vector<AddedTokenFinder::Pattern> Tokenizer::Parts::patterns(bool normalized) const {
  std::vector<AddedTokenFinder::Pattern> out;
  for (size_t i = 0; i < added.size(); ++i)
    if (added[i].normalized == normalized) out.push_back({spellings[i], added[i]});
  return out;
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<const Tokenizer> Tokenizer::load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  const std::string config_path = folder + "/tokenizer_config.json";
  const std::string text = read_file(path, kMaxTokenizerBytes);
  Json config = Json::object();
  if (const auto file = read_file_if_there(config_path, kMaxTokenizerConfigBytes))
    config = parse_json(*file, config_path);
  require(config.is_object(), "{}: must hold an object", config_path);
  return std::unique_ptr<const Tokenizer>(
      new Tokenizer(std::make_unique<Parts>(read_tokenizer_json(text, path), config, path)));
}

std::unique_ptr<const Tokenizer> Tokenizer::parse(std::string_view tokenizer_json,
                                                  const std::string& where) {
  return std::unique_ptr<const Tokenizer>(new Tokenizer(
      std::make_unique<Parts>(read_tokenizer_json(tokenizer_json, where), Json::object(), where)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  require(text.size() <= kMaxTextBytes, "the text has {} bytes; at most {} can be tokenized",
          text.size(), kMaxTextBytes);
  std::string well_formed;
  if (!is_utf8(text)) {
    append_utf8(well_formed, text, /*at_end=*/true);
    text = well_formed;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special_tokens) ids = parts_->special.before;
  size_t work = max_work(text.size());
  for (const auto& part : parts_->verbatim_finder.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::string normalized_storage;
    const std::string_view normalized =
        parts_->normalizer.normalize(part.text, normalized_storage, work);
    for (const auto& inner : parts_->normalized_finder.split(normalized)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
        continue;
      }
      const bool at_start =
          part.text.data() == text.data() && inner.text.data() == normalized.data();
      parts_->pre_tokenizer.split(inner.text, at_start,
                                  [&](std::string_view piece) { parts_->bpe.encode(piece, ids); });
    }
  }
  if (add_special_tokens)
    ids.insert(ids.end(), parts_->special.behind.begin(), parts_->special.behind.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  text += detokenizer.finish();
  return text;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return parts_->token_to_id(token);
}
int32_t Tokenizer::vocab_size() const { return parts_->texts.size(); }
bool Tokenizer::is_special(int32_t id) const { return parts_->texts.is_special(id); }
std::optional<int32_t> Tokenizer::eos_token_id() const { return parts_->eos_token_id; }
const TokenTexts& Tokenizer::token_texts() const { return parts_->texts; }

}  // namespace nanovllm
