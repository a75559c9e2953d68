#include "nanovllm/text/pre_tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/pre_tokenizer/oniguruma.h"

namespace nanovllm {

namespace {

// The longest pattern, because all alternatives are tried at each place of a text. Published
// patterns have less than a third of this length.
constexpr size_t kMaxPatternBytes = 2048;
constexpr size_t kMaxTranslatedBytes = 4 * kMaxPatternBytes;

std::string pcre_message(int code) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Counts the moves of a search and ends it when none is left.
struct Moves {
  int64_t left;
  size_t at = 0;     // where in the text the pattern was at the last call
  int64_t cost = 1;  // how much a move counts

  // Between two calls one part of the pattern was tried and the text between the two places was
  // stepped over. To go back to an earlier place takes at most as long as it took to come from it.
  static int count(pcre2_callout_block* block, void* data) {
    auto& moves = *static_cast<Moves*>(data);
    const size_t from = std::exchange(moves.at, block->current_position);
    const size_t distance = std::max(from, moves.at) - std::min(from, moves.at);
    moves.left -= moves.cost * (1 + static_cast<int64_t>(distance));
    return moves.left < 0 ? PCRE2_ERROR_CALLOUT : 0;
  }
};

// The heap of PCRE2's interpreter, which searches if the JIT's stack is too small. A backtrack
// takes about a hundred bytes.
constexpr uint32_t kMaxHeapKib = 512 << 10;

using MatchData = std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>;

int match_counted(const pcre2_code* code, std::string_view text, size_t from, Moves& moves,
                  const MatchData& data) {
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_callout(context.get(), Moves::count, &moves);
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  const auto match = [&](uint32_t options, int64_t cost) {
    moves.at = from;
    moves.cost = cost;
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options | PCRE2_NO_UTF_CHECK, data.get(), context.get());
  };
  const int rc = match(0, /*cost=*/1);
  // A move of the interpreter takes several times as long as one of the JIT.
  return rc == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT, /*cost=*/6) : rc;
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Code Regex::compile(const std::string& pattern, uint32_t options) const {
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // In Ruby's syntax ^ and $ always mean the start and the end of a line.
  options |= PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t error_at = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                          &error, &error_at, context.get()));
  if (code == nullptr && error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  require(code != nullptr, "{}: bad pattern '{}': {}", where_, pattern_, pcre_message(error));
  // If this fails, every search is a counted one of the interpreter.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

Regex::Regex(std::string_view pattern, const std::string& where)
    : where_(where), pattern_(pattern) {
  require(pattern.size() <= kMaxPatternBytes,
          "{}: a pattern of {} bytes is not supported; at most {} are", where, pattern.size(),
          kMaxPatternBytes);
  const std::string translated = to_pcre(pattern, where);
  require(translated.size() <= kMaxTranslatedBytes, "{}: the pattern '{}' is too long", where,
          pattern);
  // The JIT counts each place that it goes back to, anew for each place where a match may begin.
  near_ = compile("(*LIMIT_MATCH=32)" + translated, 0);
  counted_ = compile(translated, PCRE2_AUTO_CALLOUT);
}

void Regex::find_all(std::string_view text,
                     const std::function<void(size_t, size_t)>& on_match) const {
  if (text.empty()) return;  // like `tokenizers`, which reports not even an empty match
  const MatchData data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (data == nullptr) throw std::bad_alloc();
  const size_t* const found = pcre2_get_ovector_pointer(data.get());
  Moves moves{max_moves(text.size())};
  size_t last_end = std::string_view::npos;  // where the last match ended
  for (size_t from = 0; from <= text.size();) {
    size_t near = std::min(from + kNearBytes, text.size());
    while (near < text.size() && is_continuation(text[near])) ++near;
    const bool is_all = near == text.size();
    // With a hard partial match PCRE2 gives up as soon as the pattern looks past `near`.
    int rc = pcre2_jit_match(near_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), near, from,
                             is_all ? 0 : PCRE2_PARTIAL_HARD, data.get(), nullptr);
    if (rc == PCRE2_ERROR_NOMATCH && !is_all) {
      from = near;
      continue;
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      if (rc == PCRE2_ERROR_PARTIAL) from = found[0];
      rc = match_counted(counted_.get(), text, from, moves, data);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (rc == PCRE2_ERROR_CALLOUT)
      fail("{}: the pattern '{}' takes more than {} moves on {} bytes of text", where_, pattern_,
           max_moves(text.size()), text.size());
    if (rc < 0)
      fail("{}: the pattern '{}' cannot be matched against this text: {}", where_, pattern_,
           pcre_message(rc));
    const size_t begin = found[0];
    const size_t end = found[1];
    // No empty match follows a match immediately.
    if (begin < end || begin != last_end) on_match(begin, end);
    last_end = end;
    // After an empty match the search continues at the next character.
    from = end + (begin < end ? 0 : end < text.size() ? utf8_len(text[end]) : 1);
  }
}

}  // namespace nanovllm
