#include "nanovllm/text/tokenizer/tokenizer.h"

#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

namespace {

// The longest text, because positions in a piece have 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// The most ids that a post-processor adds. Published ones add up to three, but a file may name a
// list of ids many times.
constexpr size_t kMaxSpecialIds = 1000;

}  // namespace

std::unique_ptr<const Tokenizer> Tokenizer::load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  const std::string config_path = folder + "/tokenizer_config.json";
  const std::string text = read_file(path, kMaxTokenizerBytes);
  TokenizerJson json = read_tokenizer_json(text, path);
  if (const auto config = read_file_if_there(config_path, kMaxTokenizerConfigBytes))
    json.config = parse_json(*config, config_path);
  require(json.config.is_object(), "{}: must be an object", config_path);
  return std::unique_ptr<const Tokenizer>(new Tokenizer(json));
}

std::unique_ptr<const Tokenizer> Tokenizer::parse(std::string_view tokenizer_json,
                                                  const std::string& where) {
  return std::unique_ptr<const Tokenizer>(
      new Tokenizer(read_tokenizer_json(tokenizer_json, where)));
}

Tokenizer::Tokenizer(const TokenizerJson& json)
    : normalizer_(json),
      pre_tokenizer_(json),
      bpe_(json, pre_tokenizer_.byte_level()),
      texts_(json) {
  for (const auto& [token, id] : json.vocab) {
    require(!texts_.contains(id), "{}: model: vocab gives '{}' the id {} of another token",
            json.where, token, id);
    texts_.set(id, token, /*special=*/false);
  }
  std::vector<AddedToken> verbatim, normalized;
  WorkBudget budget;
  for (AddedToken& token : read_added_tokens(json)) {
    const int32_t vocab_id = bpe_.token_to_id(token.content);
    require(vocab_id == token.id || (vocab_id < 0 && !texts_.contains(token.id)),
            "{}: added_tokens: the id {} of '{}' is not the one in the vocab, or another token's",
            json.where, token.id, token.content);
    added_ids_.emplace(token.content, token.id);
    if (token.normalized) {
      std::string storage;
      budget.add_text(token.content.size());
      token.content = std::string(normalizer_.normalize(token.content, storage, budget).text);
    }
    texts_.set(token.id, token.content, token.special);
    (token.normalized ? normalized : verbatim).push_back(std::move(token));
  }
  verbatim_finder_ = AddedTokenFinder(std::move(verbatim));
  normalized_finder_ = AddedTokenFinder(std::move(normalized));
  read_post_processor(json);
  // eos_token is a string, or an added token written out.
  Json eos = json.config.value("eos_token", Json());
  if (eos.is_object()) eos = eos.value("content", Json());
  if (eos.is_string()) eos_token_id_ = token_to_id(eos.get<std::string>());
}

void Tokenizer::read_post_processor(const TokenizerJson& json) {
  bool has_template = false;
  for (const Component& component : json.components(
           "post_processor", "processors",
           {"BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"})) {
    if (component.type == "ByteLevel") continue;  // changes offsets only
    require(!std::exchange(has_template, true), "{}: only one is supported", component.where);
    if (component.type != "TemplateProcessing") {
      // "cls" and "sep" are pairs of a token and its id.
      for (const auto& [key, ids] : {std::pair("cls", &ids_before_), {"sep", &ids_after_}}) {
        const Json& pair = component.at(key);
        require(pair.is_array() && pair.size() == 2, "{}: '{}' must be a token and its id",
                component.where, key);
        ids->push_back(component.token_id(pair[1]));
      }
      continue;
    }
    const Json& single = component.at("single");
    require(single.size() <= kMaxSpecialIds, "{}: 'single' contains more than {} parts",
            component.where, kMaxSpecialIds);
    bool has_text = false;
    for (const Json& element : single) {
      const JsonObject part{element, component.where};
      if (element.is_object() && element.contains("Sequence")) {
        require(!has_text && part.object("Sequence").string("id") == "A",
                "{}: 'single' must contain the sequence A once", component.where);
        has_text = true;
        continue;
      }
      const std::string name = part.object("SpecialToken").string("id");
      const Json& ids = component.object("special_tokens").object(name).at("ids");
      require(ids_before_.size() + ids_after_.size() + ids.size() <= kMaxSpecialIds,
              "{}: 'single' adds more than {} ids", component.where, kMaxSpecialIds);
      for (const Json& id : ids)
        (has_text ? ids_after_ : ids_before_).push_back(component.token_id(id));
    }
    require(has_text, "{}: 'single' must contain the sequence A once", component.where);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       const EncodeOptions& options) const {
  require(text.size() <= kMaxTextBytes, "the text has {} bytes; at most {} can be tokenized",
          text.size(), kMaxTextBytes);
  std::string well_formed;
  if (!is_utf8(text)) {
    append_utf8(well_formed, text, /*at_end=*/true);
    text = well_formed;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special_tokens) ids = ids_before_;
  WorkBudget budget(text.size());
  for (const auto& part : verbatim_finder_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const EncodedParts::Key key = {options.owner, part.text.data() == text.data(), part.text};
    if (options.known != nullptr && options.known->find(key, ids)) continue;
    const size_t begin = ids.size();
    encode_part(key.text, key.at_start, options.stop, budget, ids);
    if (options.known != nullptr) options.known->add(key, std::span(ids).subspan(begin));
  }
  if (add_special_tokens) ids.insert(ids.end(), ids_after_.begin(), ids_after_.end());
  return ids;
}

void Tokenizer::encode_part(std::string_view part, bool at_start, const std::stop_token& stop,
                            WorkBudget& budget, std::vector<int32_t>& ids) const {
  std::string storage;
  const auto [normalized, has_start] = normalizer_.normalize(part, storage, budget);
  for (const auto& inner : normalized_finder_.split(normalized)) {
    if (inner.id >= 0) {
      ids.push_back(inner.id);
      continue;
    }
    pre_tokenizer_.split(inner.text,
                         at_start && has_start && inner.text.data() == normalized.data(),
                         [&](std::string_view piece) {
                           if (stop.stop_requested()) throw Cancelled();
                           bpe_.encode(piece, ids);
                         });
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto found = added_ids_.find(std::string(token)); found != added_ids_.end())
    return found->second;
  const int32_t id = bpe_.token_to_id(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

}  // namespace nanovllm
