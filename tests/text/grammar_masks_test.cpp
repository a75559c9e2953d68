#include "nanovllm/text/grammar/token_masks.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "nanovllm/text/grammar/after_thought.h"
#include "nanovllm/text/grammar/compile.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm::grammar {

namespace {

struct MaskCase {
  StructuredOutputs form;
  std::string text;
};

const std::vector<MaskCase>& mask_cases() {
  static const std::vector<MaskCase> cases = {
      {{.regex = "[a-z]+( [a-z]{2,5})*\\."}, "once upon the."},
      {{.regex = "(.|\\n)*END"}, "some text\n ENEND"},
      {{.choice = {"yes", "yesterday", "no"}}, "yesterday"},
      {{.json = R"({"type": "string", "minLength": 3, "maxLength": 9})"}, "\"one tim\""},
      {{.json = R"({"type": "string", "pattern": "^[a-z ]*time"})"}, "\"once a time x\""},
      {{.json = R"({"properties": {"name": {"type": "string"}, "names": {"type": "integer"}},
                   "required": ["names"], "additionalProperties": {"type": "boolean"}})"},
       R"({"name": "a b", "names": 12, "nam": true, "other": false})"},
      {{.json = R"({"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}})"},
       R"(["a", [["the end"]], "é\n"])"},
      {{.json_object = true}, R"({"a": {"b": [1, -2.5e3, null]}, "c": "x\u00e9"})"},
      {{.grammar = "start: e\ne: e \"+\" t | t\nt: /[0-9]+/ | \"(\" e \")\"\n%ignore \" \""},
       "(1 + 22) + 3"},
      {{.structural_tag = R"({"type": "structural_tag", "format": {"type": "triggered_tags",
          "triggers": ["<f"], "tags": [{"begin": "<f>", "end": "</f>",
          "content": {"type": "json_schema", "json_schema": {"type": "integer"}}}]}})"},
       "a < b <f>12</f> the end"},
  };
  return cases;
}

class TokenMasks : public testing::Test {
 protected:
  TokenMasks()
      : tokenizer_(Tokenizer::load(std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales")),
        end_(*tokenizer_->eos_token_id()),
        trie_(std::make_shared<const TokenTrie>(tokenizer_->token_texts(), std::vector{end_},
                                                tokenizer_->vocab_size())) {}

  bool allows(const Constraint& constraint, int32_t id) const {
    TokenBits bits((trie_->num_tokens() + 31) / 32);
    constraint.fill(bits);
    return (static_cast<uint32_t>(bits[static_cast<size_t>(id) / 32]) >> (id % 32) & 1) != 0;
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  int32_t end_;
  std::shared_ptr<const TokenTrie> trie_;
};

// The masks are compared with a loop that takes each token through the language byte by byte.
TEST_F(TokenMasks, AllowATokenExactlyIfSomethingContinuesIt) {
  for (const MaskCase& c : mask_cases()) {
    SCOPED_TRACE(c.text);
    for (const size_t max_steps : {size_t{0}, size_t{100}, Grammar::kMaxSteps}) {
      const auto plain = compile(c.form, trie_, "form");
      const auto grammar = compile(c.form, trie_, "form", max_steps);
      Matcher matcher(grammar), slow(plain);
      TokenBits bits((trie_->num_tokens() + 31) / 32);
      for (const int32_t next : tokenizer_->encode(c.text, false)) {
        matcher.fill(bits);
        for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
          bool expected = id == end_ ? slow.may_end() : false;
          if (id != end_ && !trie_->text(id).empty()) {
            Matcher after(slow);
            after.accept(id);
            expected = !after.has_failed();
          }
          const bool allowed =
              (static_cast<uint32_t>(bits[static_cast<size_t>(id) / 32]) >> (id % 32) & 1) != 0;
          ASSERT_EQ(allowed, expected)
              << tokenizer_->decode(std::vector{id}) << " before " << tokenizer_->decode({{next}});
        }
        ASSERT_TRUE(allows(matcher, next)) << tokenizer_->decode({{next}});
        matcher.accept(next);
        slow.accept(next);
      }
      EXPECT_TRUE(matcher.may_end());
      EXPECT_TRUE(allows(matcher, end_));
    }
  }
}

TEST_F(TokenMasks, SpecialTokensAreNeverInside) {
  const auto grammar = compile({.regex = "(.|\\n)*"}, trie_, "form");
  Matcher matcher(grammar);
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (!tokenizer_->is_special(id)) continue;
    EXPECT_EQ(allows(matcher, id), id == end_) << id;
  }
}

TEST_F(TokenMasks, EachAnswerHasItsOwnState) {
  const auto grammar = compile({.choice = {"yes", "no"}}, trie_, "form");
  Matcher first(grammar);
  const int32_t y = tokenizer_->encode("y", false).front();
  first.accept(y);
  Matcher copy(first), second(grammar);
  EXPECT_FALSE(allows(first, y));
  EXPECT_FALSE(allows(copy, y));
  EXPECT_TRUE(allows(second, y));
}

TEST_F(TokenMasks, NothingFollowsTheEnd) {
  const auto grammar = compile({.choice = {"yes"}}, trie_, "form");
  Matcher matcher(grammar);
  for (const int32_t id : tokenizer_->encode("yes", false)) {
    EXPECT_FALSE(matcher.is_done());
    matcher.accept(id);
  }
  EXPECT_TRUE(matcher.is_done());
  matcher.accept(end_);
  matcher.accept(end_);  // an ended answer stays ended
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id)
    EXPECT_EQ(allows(matcher, id), id == end_);
}

TEST_F(TokenMasks, ATokenThatIsNotAllowedLeavesNone) {
  const auto grammar = compile({.choice = {"yes"}}, trie_, "form");
  Matcher matcher(grammar);
  matcher.accept(tokenizer_->encode("no", false).front());
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) EXPECT_FALSE(allows(matcher, id));
}

TEST_F(TokenMasks, MemoryStaysBounded) {
  const auto grammar = compile({.regex = "(a|b)*a(a|b){0,60}c"}, trie_, "form");
  Matcher matcher(grammar);
  TokenBits bits((trie_->num_tokens() + 31) / 32);
  std::string text;
  for (uint32_t i = 0; i < 20'000; ++i) text += i * 2654435761U >> 31 != 0 ? 'a' : 'b';
  for (size_t at = 0; at + 100 <= text.size(); at += 100) {
    matcher.accept_text(text.substr(at, 100));
    matcher.fill(bits);
    ASSERT_FALSE(matcher.has_failed()) << at;
  }
  EXPECT_LT(grammar->num_bytes(), size_t{100} << 20);
}

TEST_F(TokenMasks, AFormHoldsAfterTheThought) {
  const int32_t begin = 3, end = 4;
  const auto grammar = compile({.choice = {"yes", "no"}}, trie_, "form");
  const int32_t y = tokenizer_->encode("y", false).front(),
                x = tokenizer_->encode("x", false).front();
  using State = AfterThought::State;
  const auto make = [&](State state) {
    return std::make_unique<AfterThought>(std::make_unique<Matcher>(grammar), begin, end,
                                          std::vector{end_}, state);
  };
  auto thinking = make(State::kThinking);
  EXPECT_TRUE(allows(*thinking, x));
  EXPECT_FALSE(allows(*thinking, end_));
  thinking->accept(x);
  thinking->accept(end);
  EXPECT_FALSE(allows(*thinking, x));
  EXPECT_TRUE(allows(*thinking, y));
  auto may_think = make(State::kMayThink);
  EXPECT_TRUE(allows(*may_think, begin));
  EXPECT_FALSE(allows(*may_think, x));
  may_think->accept(y);
  EXPECT_FALSE(allows(*may_think, begin));
  may_think = make(State::kMayThink);
  may_think->accept(begin);
  EXPECT_TRUE(allows(*may_think, x));
  may_think->accept(end);
  EXPECT_FALSE(allows(*may_think, begin));
  EXPECT_TRUE(allows(*may_think, y));
}

}  // namespace

}  // namespace nanovllm::grammar
