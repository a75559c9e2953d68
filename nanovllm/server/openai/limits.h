#pragma once

#include <cstddef>
#include <cstdint>

// How much one request may ask for. Whatever a client sends, the work and the memory for it are
// bounded (progress.bounded-work), and a request beyond a limit is refused before anything is
// allocated for it. The ranges of sampling parameters are in base/config.h.
namespace nanovllm::server {

/// Prompts of one request for completions.
inline constexpr size_t kMaxPrompts = 1024;
/// Answers to one request: n times the number of prompts. Each is a sequence of the engine.
inline constexpr int64_t kMaxChoices = 1024;
/// Texts in `stop`. Each is compared with every piece of the answer.
inline constexpr size_t kMaxStops = 256;
/// Texts in `bad_words`. Each is compared with the end of the answer in every step.
inline constexpr size_t kMaxBadWords = 1024;
/// Entries of `stop_token_ids`. With `min_tokens` each is masked in every step until then.
inline constexpr size_t kMaxStopTokenIds = 1024;
/// Bytes of all texts in `bad_words`, which are tokenized.
inline constexpr size_t kMaxBadWordBytes = size_t{256} << 10;
/// Memory that a request may hold until its response is written, besides its body. A step of the
/// engine needs far less.
inline constexpr size_t kMaxRequestBytes = size_t{1} << 30;
/// Memory for the values of a body's JSON, not counting the characters of its texts, which the size
/// of the body limits. The first limit is for conversations, of which a template needs several
/// copies; the other one for lists of token ids.
inline constexpr size_t kMaxConversationBytes = size_t{32} << 20;
inline constexpr size_t kMaxPromptListBytes = size_t{128} << 20;
/// Bytes of texts that only identify something: model, cache_salt.
inline constexpr size_t kMaxNameBytes = 1024;

}  // namespace nanovllm::server
