#include "nanovllm/server/openai/logprobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

/// Appends a list or an object: a comma before each item but the first one.
class Items {
 public:
  Items(std::string& to, char open, char close) : to_(to), close_(close) { to_ += open; }
  Items(const Items&) = delete;
  ~Items() { to_ += close_; }
  std::string& next() {
    if (!std::exchange(is_first_, false)) to_ += ',';
    return to_;
  }

 private:
  std::string& to_;
  char close_;
  bool is_first_ = true;
};

void append_bytes(std::string& to, const std::string& text) {
  Items bytes(to, '[', ']');
  for (const char c : text) append_number(bytes.next(), static_cast<unsigned char>(c));
}

void append_token(std::string& to, const std::string& text, float logprob) {
  append_member(to, R"({"token":)", text);
  to += R"(,"logprob":)";
  append_logprob(to, logprob);
  to += R"(,"bytes":)";
  append_bytes(to, text);
}

/// {"<token>": logprob} for the token and the best ones. Of tokens that decode to the same text,
/// only the first one is written: an object has a key once.
void append_top(std::string& to, const TokenLogprobs& entries, const TokenText& text) {
  if (entries.empty()) {
    to += "null";
    return;
  }
  Items top(to, '{', '}');
  std::vector<std::string> written;
  for (const Logprob& entry : entries) {
    std::string key;
    append_json_string(key, text(entry.id));
    if (std::ranges::find(written, key) != written.end()) continue;
    top.next() += key;
    to += ':';
    append_logprob(to, entry.logprob);
    written.push_back(std::move(key));
  }
}

}  // namespace

TokenText token_text_of(std::shared_ptr<const Tokenizer> tokenizer) {
  return [tokenizer = std::move(tokenizer)](int32_t id) {
    if (!tokenizer) return std::string();
    // decode() has U+FFFD for a part of a character.
    const TokenTexts& texts = tokenizer->token_texts();
    if (texts.contains(id) && !is_utf8(texts.text(id))) return std::string(texts.text(id));
    return tokenizer->decode(std::span(&id, 1), /*skip_special_tokens=*/false);
  };
}

TextOffset::TextOffset(std::optional<Detokenizer> detokenizer, int64_t begin)
    : detokenizer_(std::move(detokenizer)), num_chars_(begin) {}

void TextOffset::add(int32_t id) {
  if (detokenizer_) num_chars_ += num_chars_of(detokenizer_->push(id));
}

int64_t TextOffset::num_chars() const {
  std::string held_back;
  if (detokenizer_) append_utf8(held_back, detokenizer_->pending(), /*at_end=*/false);
  return num_chars_ + num_chars_of(held_back);
}

int64_t num_chars_of(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !is_continuation(c); });
}

std::vector<int64_t> offsets_of_prompt(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                       bool has_added_ids) {
  const size_t begin = has_added_ids ? tokenizer.num_ids_before() : 0;
  const size_t end = ids.size() - (has_added_ids ? tokenizer.num_ids_after() : 0);
  TextOffset offset(Detokenizer(tokenizer, /*skip_special_tokens=*/false));
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < ids.size(); ++i) {
    offsets.push_back(offset.num_chars());
    if (i >= begin && i < end) offset.add(ids[i]);
  }
  return offsets;
}

void append_token_logprobs(std::string& to, const TokensView& tokens, const TokenText& text) {
  Items content(to, '[', ']');
  for (const TokenLogprobs& entries : tokens.logprobs) {
    if (entries.empty()) continue;
    append_token(content.next(), text(entries[0].id), entries[0].logprob);
    to += R"(,"top_logprobs":)";
    {
      Items top(to, '[', ']');
      for (const Logprob& entry : std::span(entries).subspan(1)) {
        append_token(top.next(), text(entry.id), entry.logprob);
        to += '}';
      }
    }
    to += '}';
  }
}

void append_chat_logprobs(std::string& to, const TokensView& tokens, const TokenText& text) {
  if (tokens.logprobs.empty()) {
    to += "null";
    return;
  }
  to += R"({"content":)";
  append_token_logprobs(to, tokens, text);
  to += R"(,"refusal":null})";
}

void append_completion_logprobs(std::string& to, const TokensView& prompt,
                                std::span<const int64_t> prompt_offsets, const TokensView& answer,
                                TextOffset& offset, const TokenText& text) {
  if (prompt.logprobs.empty() && answer.logprobs.empty()) {
    to += "null";
    return;
  }
  // The four lists have an entry for each token. They are written side by side, because what a
  // token decodes to is needed for two of them.
  std::string token_logprobs, top_logprobs, offsets;
  to += R"({"tokens":)";
  {
    Items tokens(to, '[', ']'), logprobs(token_logprobs, '[', ']'), tops(top_logprobs, '[', ']'),
        starts(offsets, '[', ']');
    const auto append = [&](int32_t id, const TokenLogprobs& entries, int64_t begin) {
      append_json_string(tokens.next(), text(id));
      if (entries.empty()) logprobs.next() += "null";
      else append_logprob(logprobs.next(), entries[0].logprob);
      append_top(tops.next(), entries, text);
      append_number(starts.next(), begin);
    };
    for (size_t i = 0; i < std::min(prompt.ids.size(), prompt.logprobs.size()); ++i)
      append(prompt.ids[i], prompt.logprobs[i], prompt_offsets[i]);
    for (size_t i = 0; i < std::min(answer.ids.size(), answer.logprobs.size()); ++i) {
      append(answer.ids[i], answer.logprobs[i], offset.num_chars());
      offset.add(answer.ids[i]);
    }
  }
  to += R"(,"token_logprobs":)" + token_logprobs;
  to += R"(,"top_logprobs":)" + top_logprobs;
  to += R"(,"text_offset":)" + offsets + '}';
}

void append_prompt_logprobs(std::string& to, std::span<const TokenLogprobs> logprobs,
                            const TokenText& text) {
  Items tokens(to, '[', ']');
  for (const TokenLogprobs& entries : logprobs) {
    if (entries.empty()) {
      tokens.next() += "null";
      continue;
    }
    Items best(tokens.next(), '{', '}');
    for (size_t i = 0; i < entries.size(); ++i) {
      // The token itself is often one of the best, too.
      if (i != 0 && entries[i].id == entries[0].id) continue;
      best.next() += '"';
      append_number(to, entries[i].id);
      to += R"(":{"logprob":)";
      append_logprob(to, entries[i].logprob);
      append_member(to, R"(,"rank":)", entries[i].rank);
      append_member(to, R"(,"decoded_token":)", text(entries[i].id));
      to += '}';
    }
  }
}

}  // namespace nanovllm::server
