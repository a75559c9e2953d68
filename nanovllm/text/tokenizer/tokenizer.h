#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

class TokenTexts;

/// A Hugging Face tokenizer.json of the BPE kind: text to token ids and back, as the Python package
/// `tokenizers` does it (compared with version 0.23.3 by scripts/tokenizer_differential.py).
/// Supported are the components of byte-level (GPT-2, Qwen, Llama 3) and SentencePiece-like (Llama
/// 2, Mistral) tokenizers:
///   normalizer      Sequence, NFC, Prepend, Replace of a string
///   pre_tokenizer   Sequence, Split, ByteLevel, Metaspace
///   model           BPE with byte_fallback, fuse_unk, ignore_merges
///   post_processor  Sequence, ByteLevel, TemplateProcessing
///   decoder         Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip
/// Truncation and padding are not applied. NFC is Unicode's of today, while `tokenizers` orders
/// marks that came after Unicode 10 as if they were none. Immutable: every member may be called
/// from several threads at once.
class Tokenizer {
 public:
  /// From `folder`/tokenizer.json, and tokenizer_config.json if it is there: its
  /// added_tokens_decoder adds to or replaces the added tokens, and it names the end token. Throws
  /// UserError that names the file and the component.
  static std::unique_ptr<const Tokenizer> load(const std::string& folder);
  /// From the text of a tokenizer.json; `where` begins the error messages.
  static std::unique_ptr<const Tokenizer> parse(std::string_view tokenizer_json,
                                                const std::string& where);
  ~Tokenizer();

  /// Added tokens written in the text are parsed as such. `add_special_tokens`: also what the
  /// post-processor adds (a BOS). Bytes that are not UTF-8 become U+FFFD, one for each maximal
  /// subpart (Unicode 15, section 3.9; what Python's errors="replace" does). Time is linear in the
  /// text but for a logarithm.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  /// Ids that no token has are left out, and so are special tokens if asked. Valid UTF-8 whatever
  /// the ids are.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  /// The token as tokenizer.json spells it ("<|im_end|>", "Ġthe").
  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The largest id + 1, added tokens included.
  int32_t vocab_size() const;
  /// Whether the added token `id` is marked special; false for any other id.
  bool is_special(int32_t id) const;
  /// tokenizer_config.json's eos_token, if there is one.
  std::optional<int32_t> eos_token_id() const;

  /// What each id decodes to; for Detokenizer.
  const TokenTexts& token_texts() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace nanovllm
