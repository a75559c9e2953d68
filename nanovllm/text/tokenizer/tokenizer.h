#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"
#include "nanovllm/text/tokenizer/added_tokens.h"
#include "nanovllm/text/tokenizer/bpe.h"
#include "nanovllm/text/tokenizer/detokenizer.h"
#include "nanovllm/text/tokenizer/encoded_parts.h"

namespace nanovllm {

/// Options of encode() that do not change the ids of a text.
struct EncodeOptions {
  EncodedParts* known = nullptr;  ///< the ids of parts that this tokenizer has encoded before
  std::string_view owner = {};    ///< the owner of the parts
  std::stop_token stop = {};      ///< a request to stop ends the work with Cancelled
};

/// A Hugging Face tokenizer.json of the BPE kind: text to token ids and back, as the Python package
/// `tokenizers` does it (scripts/tokenizer_differential.py compares with version 0.23.3). Read this
/// file first.
///
/// encode() sends a text through this pipeline; each stage has a file of its own:
///   1. added tokens    finds tokens such as "<|im_end|>" in the text         added_tokens.h
///   2. normalizer      rewrites the rest, for example to NFC                 normalizer.h
///   3. added tokens    finds those that are searched in normalized text
///   4. pre-tokenizer   splits the rest into words                            pre_tokenizer.h
///   5. BPE             merges the bytes of a word into tokens                bpe.h
///   6. post-processor  adds ids at the start and the end, such as a BOS      tokenizer.cpp
/// Detokenizer does the reverse, one id at a time: each id has its bytes (TokenTexts), and bytes
/// are held back until they are whole characters (detokenizer.h, decoder.h). tokenizer_json.h reads
/// the file.
///
/// It supports what the package writes for a BPE model, except for the normalizer Precompiled and
/// the pre_tokenizer UnicodeScripts, which belong to Unigram models:
///   normalizer      BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Prepend,
///                   Replace, Strip, StripAccents
///   pre_tokenizer   BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength,
///                   Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit
///   model           BPE without dropout
///   post_processor  BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing
///   decoder         BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Strip,
///                   WordPiece
/// and a Sequence of each. Truncation and padding are not applied. NFC is that of the latest
/// Unicode version, while `tokenizers` does not reorder marks that were added after Unicode 10.
///
/// For every file, encoding takes time and memory in proportion to the text (times a logarithm), or
/// ends with a UserError. A tokenizer is immutable: several threads may call every member at once.
class Tokenizer {
 public:
  /// Reads `folder`/tokenizer.json, and tokenizer_config.json if it is there: its
  /// added_tokens_decoder adds to or replaces the added tokens, and it names the end token. Throws
  /// UserError that names the file and the component.
  static std::unique_ptr<const Tokenizer> load(const std::string& folder);
  /// Reads the text of a tokenizer.json; `where` begins the error messages.
  static std::unique_ptr<const Tokenizer> parse(std::string_view tokenizer_json,
                                                const std::string& where);

  /// The ids of a text. Added tokens that are written in the text are recognised.
  /// `add_special_tokens` adds the ids of the post-processor. Bytes that are not UTF-8 become
  /// U+FFFD, one for each maximal subpart (Unicode 15, section 3.9; what Python's errors="replace"
  /// does).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true,
                              const EncodeOptions& options = {}) const;

  /// The text of ids. Ids that no token has are left out, and so are special tokens if
  /// `skip_special_tokens`. The result is always valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  /// The id of a token as tokenizer.json spells it ("<|im_end|>", "Ġthe").
  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The largest id + 1, added tokens included.
  int32_t vocab_size() const { return texts_.size(); }
  /// Whether the added token `id` is marked special; false for any other id.
  bool is_special(int32_t id) const { return texts_.is_special(id); }
  /// How many ids encode() adds before and after those of the text, if it adds special tokens.
  size_t num_ids_before() const { return ids_before_.size(); }
  size_t num_ids_after() const { return ids_after_.size(); }
  /// The eos_token of tokenizer_config.json, if there is one.
  std::optional<int32_t> eos_token_id() const { return eos_token_id_; }
  /// The text that each id decodes to, for Detokenizer.
  const TokenTexts& token_texts() const { return texts_; }

 private:
  explicit Tokenizer(const TokenizerJson& json);
  void encode_part(std::string_view part, bool at_start, const std::stop_token& stop,
                   WorkBudget& budget, std::vector<int32_t>& ids) const;
  void read_post_processor(const TokenizerJson& json);

  Normalizer normalizer_;
  AddedTokenFinder verbatim_finder_, normalized_finder_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  std::vector<int32_t> ids_before_, ids_after_;  // what the post-processor adds
  TokenTexts texts_;
  std::unordered_map<std::string, int32_t> added_ids_;  // ids of added tokens by their content
  std::optional<int32_t> eos_token_id_;
};

}  // namespace nanovllm
