#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nanovllm::grammar {

/// An expression of an Expressions. Equal handles mean equal expressions.
enum class Expr : uint32_t {
  kNothing = 0,  ///< the empty language
  kEmpty = 1,    ///< only the empty text
  kAny = 2       ///< every text
};
using Bytes = std::bitset<256>;

inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

/// Languages of byte strings, and what remains of them after each byte.
///
/// Everything that an answer can be held to (a regular expression, a JSON schema, a grammar) is an
/// expression: bytes, sequences, alternatives, repetitions, intersections, complements, and rules,
/// which may contain themselves. The Brzozowski derivative of a language by a byte is what may
/// follow this byte (J. Brzozowski, "Derivatives of regular expressions", 1964; M. Might and
/// others, "Parsing with derivatives", 2011). So an expression is also the state of a parser, and
/// the rest of a sequence is the parser's stack:
///
///     "{" member* "}"   after {      is   member* "}"
///                       after {"     is   key ":" value member* "}"
///
/// Equal expressions are stored once, alternatives that begin with the same expression are joined,
/// and derivatives are remembered. Thus the states of a regular expression become those of an
/// automaton, and a step is a table look-up.
///
/// After prepare(), an expression other than kNothing always has a text: where an intersection or
/// a complement could have none, derive() searches for one. So a byte is allowed exactly if some
/// text continues it.
///
/// Build all expressions, call prepare() once, then derive. Not thread-safe.
class Expressions {
 public:
  explicit Expressions(size_t max_bytes = 64 << 20);

  // -- Building. Throws UserError if the expressions need more than max_bytes.
  Expr bytes(const Bytes& set);                    ///< one byte of a set
  Expr byte_range(uint8_t first, uint8_t last);    ///< one byte of first..last
  Expr text(std::string_view text);                ///< these bytes
  Expr texts(std::span<const std::string> texts);  ///< one of these texts
  Expr sequence(Expr first, Expr then);
  Expr sequence(std::initializer_list<Expr> parts);
  Expr any_of(const std::vector<Expr>& alternatives);
  Expr optional(Expr part) { return any_of({part, Expr::kEmpty}); }
  /// `part`, min to max times.
  Expr repeat(Expr part, uint32_t min, uint32_t max = kUnlimited);
  /// Texts that are in both. Neither may have rules.
  Expr both(Expr a, Expr b);
  /// Texts that are not in `a`, which may have no rules.
  Expr complement(Expr a);
  /// Decimal numbers without a sign and an exponent that are multiples of divisor / 10^scale. They
  /// may have leading zeros and end with a point; intersect them with the form wanted.
  Expr multiple_of(uint32_t divisor, uint32_t scale);

  /// A name for an expression that is defined later, and may contain itself.
  Expr new_rule(std::string name);
  void define(Expr rule, Expr body);
  bool has_rules(Expr e) const { return node(e).has_rules; }

  // -- Walking.
  /// Removes left recursion and everything that has no text, and returns what `start` has become:
  /// kNothing if there is no text. Throws UserError for a rule that is not defined.
  Expr prepare(Expr start);
  /// What may follow `byte`. Throws UserError if it needs too much memory, or too many steps to see
  /// whether an intersection has a text.
  Expr derive(Expr e, uint8_t byte) { return derive_class(e, class_of_[byte]); }
  /// Whether the empty text is in it, so that the text may end here.
  bool is_nullable(Expr e) const { return node(e).nullable; }
  /// The bytes that a text may begin with.
  Bytes first_bytes(Expr e);
  /// The parts of which e is the sequence; the first one is no sequence.
  std::pair<Expr, Expr> split(Expr e) const;
  /// The alternatives of e, or e itself.
  std::span<const Expr> alternatives(const Expr& e) const;

  struct Repetition {
    Expr part;
    uint32_t min, max;
  };
  std::optional<Repetition> repetition(Expr e) const;
  struct Difference {
    Expr from, without;
  };
  /// What e is if it is the texts of one language that are not in another one.
  std::optional<Difference> difference(Expr e) const;
  /// Whether no text of e begins another one. False if this takes many steps to see.
  bool is_prefix_free(Expr e);
  /// A text that equal expressions have in every Expressions; empty if it has rules or is large.
  std::string name(Expr e) const;

  /// The expression and its rules, for a reader.
  std::string to_text(Expr start) const;

  /// The memory that the expressions and their derivatives take, and may take.
  size_t num_bytes() const;
  size_t max_bytes() const { return max_bytes_; }
  /// Forgets what was derived since prepare(), except for `kept`, which get their new handles.
  void forget_all_but(std::span<Expr> kept);

 private:
  enum class Kind : uint8_t {
    kNothing,
    kEmpty,
    kBytes,       // a: index in sets_
    kSequence,    // a, which is no sequence, then b
    kAnyOf,       // b alternatives, from alternatives_[a] on
    kBoth,        // a and b
    kComplement,  // of a
    kRepeat,      // a, b to c times
    kMultiple,    // a: divisor, b: remainder so far, c: digits of the fraction that may follow,
                  // and kPoint after the point
    kRule         // a: index in rules_
  };
  struct Node {
    Kind kind;
    bool nullable = false;  // of a rule: known after prepare()
    bool has_rules = false;
    uint32_t a = 0, b = 0, c = 0;
  };
  struct Rule {
    std::string name;
    Expr body = Expr::kNothing;
    bool defined = false;
  };
  enum class Viable : uint8_t { kUnknown, kNo, kYes };

  const Node& node(Expr e) const { return nodes_[static_cast<uint32_t>(e)]; }
  std::span<const Expr> list(const Node& n) const { return {alternatives_.data() + n.a, n.b}; }
  Expr intern(const Node& node, std::span<const Expr> list = {});
  uint32_t& place_of(const Node& node, std::span<const Expr> list);
  std::string name(Expr e, size_t& max_nodes) const;
  /// Appends the expression to `text`, and its rules to `rules`.
  void print(Expr e, std::string& text, std::vector<uint32_t>& rules) const;
  void rebuild_places(size_t num_places);
  void check_memory() const;
  static bool has_part_a(const Node& n) {
    return n.kind == Kind::kSequence || n.kind == Kind::kBoth || n.kind == Kind::kComplement ||
           n.kind == Kind::kRepeat;
  }
  static bool has_part_b(const Node& n) {
    return n.kind == Kind::kSequence || n.kind == Kind::kBoth;
  }

  // -- rules.cpp
  friend class LeftRecursion;
  std::vector<bool> propagate(std::vector<bool> holds) const;
  void find_nullable();
  void find_classes();
  std::vector<Expr> find_texts();

  // -- derive.cpp
  Expr derive_class(Expr e, uint32_t byte_class) {
    const uint32_t row = row_of_[static_cast<uint32_t>(e)];
    if (row != 0) {
      const Expr known = derivatives_[(row - 1) * representatives_.size() + byte_class];
      if (known != kUnknown) return known;
    }
    return compute_derivative(e, byte_class);
  }
  static constexpr uint32_t kPoint = 1000;
  static constexpr Expr kUnknown = static_cast<Expr>(kUnlimited);
  Expr compute_derivative(Expr e, uint32_t byte_class);
  Expr derive_parts(Expr e, uint32_t byte_class);
  Expr derive_intersection(const Node& node, uint32_t byte_class);
  Expr derive_multiple(Node node, uint8_t byte);
  bool is_viable(Expr e);

  size_t max_bytes_;
  std::vector<Node> nodes_;
  std::vector<Expr> alternatives_;  // the lists of kAnyOf
  std::vector<Bytes> sets_;
  std::unordered_map<Bytes, uint32_t> set_ids_;
  std::vector<Rule> rules_;
  std::vector<uint32_t> places_;  // open addressing: the index of a node + 1, 0: free

  // After prepare(). Bytes that no expression distinguishes are a class.
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> representatives_;  // [num_classes]
  std::vector<uint32_t> row_of_;          // [nodes]: its row of derivatives_ + 1, 0: none
  std::vector<Expr> derivatives_;         // [rows, num_classes]
  std::vector<Viable> viable_;            // [nodes]: of intersections and complements
  bool is_prepared_ = false;
  size_t num_prepared_nodes_ = 0, num_prepared_alternatives_ = 0;
  uint32_t join_depth_ = 0, derive_depth_ = 0;  // of nested calls
  uint32_t num_joins_ = 0;                      // in an outermost call of any_of()
  size_t num_joined_ = 0, num_searched_ = 0;    // alternatives and states, since the last byte
};

}  // namespace nanovllm::grammar
