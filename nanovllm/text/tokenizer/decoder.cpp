#include "nanovllm/text/tokenizer/decoder.h"

#include <charconv>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/byte_alphabet.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

namespace {

// The byte that "<0x0A>" names; -1 for any other text.
int named_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  // Rust's from_str_radix(), by which `tokenizers` reads the number, takes a sign.
  const char* const begin = token.data() + (token[3] == '+' ? 4 : 3);
  const char* const end = token.data() + 5;
  unsigned char byte = 0;
  return std::from_chars(begin, end, byte, 16).ptr == end ? byte : -1;
}

// The bytes that the token spells. A token that is not spelled in the alphabet, such as an added
// token with a space, is its own text.
std::string bytes_of(std::string_view token) {
  std::string bytes;
  if (!append_spelled_bytes(token, bytes)) bytes = token;
  return bytes;
}

void replace_text(std::string& text, std::string_view what, std::string_view with) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = find_bytes(text, what, done)) != std::string_view::npos;
       done = at + what.size())
    out.append(text, done, at - done).append(with);
  if (done > 0) text = out.append(text, done);
}

void remove_spaces(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kReplacements) replace_text(text, what, with);
}

// Removes the character `what` up to `start` times at the start and `stop` times at the end.
std::string_view stripped(std::string_view text, std::string_view what, size_t start, size_t stop) {
  std::string_view front = text, back = text;
  for (; start > 0 && front.starts_with(what); --start) front.remove_prefix(what.size());
  for (; stop > 0 && back.ends_with(what); --stop) back.remove_suffix(what.size());
  const auto end = back.data() + back.size();
  return front.data() < end
             ? std::string_view(front.data(), static_cast<size_t>(end - front.data()))
             : std::string_view();
}

}  // namespace

Decoder::Decoder(const TokenizerJson& json) {
  constexpr std::pair<std::string_view, void (Decoder::*)(const Component&)> kComponents[] = {
      {"BPEDecoder", &Decoder::add_bpe},
      {"ByteFallback", &Decoder::add_byte_fallback},
      {"ByteLevel", &Decoder::add_byte_level},
      {"CTC", &Decoder::add_ctc},
      {"Fuse", &Decoder::add_fuse},
      {"Metaspace", &Decoder::add_metaspace},
      {"Replace", &Decoder::add_replace},
      {"Strip", &Decoder::add_strip},
      {"WordPiece", &Decoder::add_word_piece}};
  json.for_each_component(
      "decoder", "decoders", kComponents,
      [&](auto add_step, const Component& component) { (this->*add_step)(component); });
  if (json.fields.value("decoder", Json()).is_null()) steps_.push_back({kJoin});
  while (num_prepared_ < steps_.size() &&
         (steps_[num_prepared_].kind == kReplace || steps_[num_prepared_].kind == kStrip))
    ++num_prepared_;
}

void Decoder::add_bpe(const Component& component) {
  std::string suffix = component.json.contains("suffix") ? component.string("suffix") : "</w>";
  require(!suffix.empty(), "{}: the suffix is empty", component.where);
  steps_.push_back({.kind = kBpe, .text = suffix, .pattern = literal_pattern(suffix)});
}

void Decoder::add_byte_fallback(const Component&) { steps_.push_back({kByteFallback}); }

void Decoder::add_byte_level(const Component&) { steps_.push_back({kByteLevel}); }

void Decoder::add_ctc(const Component& component) {
  steps_.push_back({.kind = kCtc,
                    .text = component.string("pad_token"),
                    .other = component.string("word_delimiter_token"),
                    .cleans_up = component.flag("cleanup", true)});
  require(!steps_.back().text.empty() && !steps_.back().other.empty(),
          "{}: pad_token and word_delimiter_token must not be empty", component.where);
}

void Decoder::add_fuse(const Component&) { steps_.push_back({kFuse}); }

void Decoder::add_metaspace(const Component& component) {
  const bool drops_first = component.json.contains("prepend_scheme")
                               ? component.string("prepend_scheme") != "never"
                               : component.flag("add_prefix_space", true);
  steps_.push_back({.kind = kMetaspace,
                    .pattern = literal_pattern(component.character("replacement")),
                    .drops_first = drops_first});
}

void Decoder::add_replace(const Component& component) {
  const Json literal = component.at("pattern").value("String", Json());
  const bool is_character =
      literal.is_string() &&
      character_len(literal.get<std::string>() + '\0') == literal.get<std::string>().size();
  steps_.push_back({.kind = kReplace,
                    .text = component.string("content"),
                    .pattern = read_pattern(component),
                    .is_character = is_character});
}

void Decoder::add_strip(const Component& component) {
  const auto times = [&](const char* key) {
    require(component.at(key).is_number_unsigned(), "{}: '{}' must be a number", component.where,
            key);
    return component.at(key).get<size_t>();
  };
  steps_.push_back({.kind = kStrip,
                    .text = component.character("content"),
                    .start = times("start"),
                    .stop = times("stop")});
}

void Decoder::add_word_piece(const Component& component) {
  steps_.push_back({.kind = kWordPiece,
                    .text = component.string("prefix"),
                    .cleans_up = component.flag("cleanup", true)});
}

Decoder::Token Decoder::prepare(std::string_view token, WorkBudget& budget) const {
  budget.add_text(token.size());
  Token out{std::string(token)};
  for (size_t i = 0; i < num_prepared_; ++i) {
    const Step& step = steps_[i];
    out.text = step.kind == kReplace
                   ? replace_all(out.text, step.pattern, step.text, budget)
                   : std::string(stripped(out.text, step.text, step.start, step.stop));
  }
  if (num_prepared_ == steps_.size()) return out;
  if (steps_[num_prepared_].kind == kByteLevel) {
    out.text = bytes_of(out.text);
  } else if (const int byte = named_byte(out.text);
             byte >= 0 && steps_[num_prepared_].kind == kByteFallback) {
    out = {std::string(1, static_cast<char>(byte)), true};
  }
  return out;
}

Decoding::Decoding(const Decoder& decoder) : decoder_(&decoder), states_(decoder.steps_.size()) {
  for (size_t i = 0; i < states_.size(); ++i) states_[i].num_left = decoder.steps_[i].start;
}

void Decoding::continue_text() {
  bool is_fused = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const Decoder::Kind kind = decoder_->steps_[i].kind;
    is_fused = is_fused || kind == Decoder::kFuse || kind == Decoder::kByteLevel;
    if (is_fused) states_[i].num_left = 0;
    states_[i].num_tokens = 1;
  }
}

std::string Decoding::push(std::string_view text, bool is_byte) {
  budget_.add_text(text.size());
  const size_t first = decoder_->num_prepared_;
  if (first == states_.size()) return std::string(text);
  State& state = states_[first];
  const Decoder::Kind kind = decoder_->steps_[first].kind;
  if (is_byte) {
    state.held += text;
  } else if (kind == Decoder::kByteLevel) {
    // Nearly every token of nearly every tokenizer takes this path.
    if (first + 1 == states_.size() && state.held.empty() && is_utf8(text))
      return std::string(text);
    give_bytes(first, state, text);
  } else if (kind == Decoder::kByteFallback) {
    end_bytes(first);
    give(first + 1, text, /*ends_token=*/true);
  } else {
    give(first, text, /*ends_token=*/true);
  }
  return std::exchange(out_, {});
}

std::string Decoding::pending() const {
  std::string pending;
  for (size_t i = states_.size(); i-- > 0;) pending.append(states_[i].held).append(states_[i].part);
  return pending;
}

std::string Decoding::finish() {
  for (size_t step = decoder_->num_prepared_; step < states_.size(); ++step) end(step);
  return std::exchange(out_, {});
}

void Decoding::give(size_t step, std::string_view text, bool ends_token) {
  if (step == states_.size()) {
    out_ += text;
    return;
  }
  const Step& settings = decoder_->steps_[step];
  State& state = states_[step];
  if (settings.kind == Decoder::kFuse) return give(step + 1, text, /*ends_token=*/false);
  if (settings.kind == Decoder::kMetaspace || settings.is_character) {
    const bool drops = settings.drops_first && state.num_tokens == 0;
    const std::string_view with = settings.kind == Decoder::kReplace
                                      ? std::string_view(settings.text)
                                  : drops ? ""
                                          : " ";
    if (ends_token) ++state.num_tokens;
    return give(step + 1, replaced(text, settings.pattern, with), ends_token);
  }
  if (settings.kind == Decoder::kStrip && settings.stop == 0) {
    for (; state.num_left > 0 && text.starts_with(settings.text); --state.num_left)
      text.remove_prefix(settings.text.size());
    if (!text.empty()) state.num_left = 0;
    if (ends_token) state.num_left = settings.start;
    return give(step + 1, text, ends_token);
  }
  state.part += text;
  if (ends_token) give_token(step, settings, state, std::exchange(state.part, {}));
}

void Decoding::give_token(size_t step, const Step& settings, State& state, std::string text) {
  const auto pass_on = [&](std::string_view token) { give(step + 1, token, /*ends_token=*/true); };
  const bool is_first = state.num_tokens++ == 0;
  switch (settings.kind) {
    case Decoder::kBpe:
      if (!is_first) pass_on(replaced(state.held, settings.pattern, " "));
      state.held = std::move(text);
      break;
    case Decoder::kByteFallback:
      if (const int byte = named_byte(text); byte >= 0) {
        state.held += static_cast<char>(byte);
      } else {
        end_bytes(step);
        pass_on(text);
      }
      break;
    case Decoder::kByteLevel:
      give_bytes(step, state, bytes_of(text));
      break;
    case Decoder::kCtc:
      if (!is_first && text == state.last) break;
      state.last = text;
      replace_text(text, settings.text, "");
      if (settings.cleans_up) {
        remove_spaces(text);
        replace_text(text, settings.other, " ");
      }
      if (!text.empty()) pass_on(text);
      break;
    case Decoder::kJoin:
      pass_on((is_first ? "" : " ") + text);
      break;
    case Decoder::kReplace:
      pass_on(replaced(text, settings.pattern, settings.text));
      break;
    case Decoder::kStrip:
      pass_on(stripped(text, settings.text, settings.start, settings.stop));
      break;
    case Decoder::kWordPiece:
      if (!is_first && text.starts_with(settings.text)) text.erase(0, settings.text.size());
      else if (!is_first) text.insert(0, " ");
      if (settings.cleans_up) remove_spaces(text);
      pass_on(text);
      break;
    case Decoder::kFuse:
    case Decoder::kMetaspace:
      break;  // take parts of tokens
  }
}

void Decoding::give_bytes(size_t step, State& state, std::string_view bytes) {
  if (state.held.empty() && is_utf8(bytes)) return give(step + 1, bytes, /*ends_token=*/false);
  std::string text;
  state.held += bytes;
  state.held.erase(0, append_utf8(text, state.held, /*at_end=*/false));
  give(step + 1, text, /*ends_token=*/false);
}

void Decoding::end_bytes(size_t step) {
  const std::string bytes = std::exchange(states_[step].held, {});
  if (bytes.empty()) return;
  if (is_utf8(bytes)) return give(step + 1, bytes, /*ends_token=*/true);
  for (size_t i = 0; i < bytes.size(); ++i)
    give(step + 1, kReplacementCharacter, /*ends_token=*/true);
}

void Decoding::end(size_t step) {
  const Step& settings = decoder_->steps_[step];
  State& state = states_[step];
  std::string text;
  switch (settings.kind) {
    case Decoder::kByteLevel:
      append_utf8(text, std::exchange(state.held, {}), /*at_end=*/true);
      [[fallthrough]];
    case Decoder::kFuse:
      return give(step + 1, text, /*ends_token=*/true);
    case Decoder::kByteFallback:
      return end_bytes(step);
    case Decoder::kBpe:
      if (state.num_tokens > 0)
        give(step + 1, replaced(std::exchange(state.held, {}), settings.pattern, ""), true);
      return;
    default:
      return;
  }
}

std::string Decoding::replaced(std::string_view text, const Pattern& pattern,
                               std::string_view with) {
  try {
    return replace_all(text, pattern, with, budget_);
  } catch (const UserError&) {  // too much work
    return std::string(text);
  }
}

}  // namespace nanovllm
