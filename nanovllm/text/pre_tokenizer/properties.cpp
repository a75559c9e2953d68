#include "nanovllm/text/pre_tokenizer/properties.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <new>
#include <utility>

namespace nanovllm {

namespace {

using Entry = std::pair<std::string_view, std::string_view>;

constexpr Entry kPosix[] = {{"alnum", R"(\p{Alphabetic}\p{Nd})"},
                            {"alpha", R"(\p{Alphabetic})"},
                            {"ascii", R"(\x{00}-\x{7F})"},
                            {"blank", R"(\t\p{Zs})"},
                            {"cntrl", R"(\p{Cc})"},
                            {"digit", kDigitItems},
                            {"graph", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
                            {"lower", R"(\p{Lowercase})"},
                            {"print", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}\p{Zs})"},
                            {"punct", R"(\p{P}\p{S})"},
                            {"space", kSpaceItems},
                            {"upper", R"(\p{Uppercase})"},
                            {"word", kWordItems},
                            {"xdigit", kHexDigitItems}};

// Names that PCRE2 does not know: the names of POSIX, and the long names of categories.
constexpr Entry kProperties[] = {{"any", R"(\x{0}-\x{10FFFF})"},
                                 {"casedletter", R"(\p{L&})"},
                                 {"closepunctuation", R"(\p{Pe})"},
                                 {"combiningmark", R"(\p{M})"},
                                 {"connectorpunctuation", R"(\p{Pc})"},
                                 {"control", R"(\p{Cc})"},
                                 {"currencysymbol", R"(\p{Sc})"},
                                 {"dashpunctuation", R"(\p{Pd})"},
                                 {"decimalnumber", R"(\p{Nd})"},
                                 {"enclosingmark", R"(\p{Me})"},
                                 {"finalpunctuation", R"(\p{Pf})"},
                                 {"format", R"(\p{Cf})"},
                                 {"initialpunctuation", R"(\p{Pi})"},
                                 {"lc", R"(\p{L&})"},
                                 {"letter", R"(\p{L})"},
                                 {"letternumber", R"(\p{Nl})"},
                                 {"lineseparator", R"(\p{Zl})"},
                                 {"lowercaseletter", R"(\p{Ll})"},
                                 {"mark", R"(\p{M})"},
                                 {"mathsymbol", R"(\p{Sm})"},
                                 {"modifierletter", R"(\p{Lm})"},
                                 {"modifiersymbol", R"(\p{Sk})"},
                                 {"nonspacingmark", R"(\p{Mn})"},
                                 {"number", R"(\p{N})"},
                                 {"openpunctuation", R"(\p{Ps})"},
                                 {"other", R"(\p{C})"},
                                 {"otherletter", R"(\p{Lo})"},
                                 {"othernumber", R"(\p{No})"},
                                 {"otherpunctuation", R"(\p{Po})"},
                                 {"othersymbol", R"(\p{So})"},
                                 {"paragraphseparator", R"(\p{Zp})"},
                                 {"privateuse", R"(\p{Co})"},
                                 {"punct", R"(\p{P})"},
                                 {"punctuation", R"(\p{P})"},
                                 {"separator", R"(\p{Z})"},
                                 {"spaceseparator", R"(\p{Zs})"},
                                 {"spacingmark", R"(\p{Mc})"},
                                 {"surrogate", R"(\p{Cs})"},
                                 {"symbol", R"(\p{S})"},
                                 {"titlecaseletter", R"(\p{Lt})"},
                                 {"unassigned", R"(\p{Cn})"},
                                 {"uppercaseletter", R"(\p{Lu})"}};

template <class Table>
std::string_view find(const Table& table, std::string_view name) {
  const auto* const entry = std::ranges::find(table, name, &Entry::first);
  return entry == std::end(table) ? std::string_view() : entry->second;
}

// Removes the characters that Oniguruma and PCRE2 ignore when they compare names.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool is_known_to_pcre(const std::string& items) {
  int error = 0;
  size_t at = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(items.data()), items.size(),
                                         PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  return code != nullptr;
}

}  // namespace

std::string property_items(std::string_view name) {
  const std::string key = plain(name);
  for (const std::string_view known : {find(kProperties, key), find(kPosix, key)})
    if (!known.empty()) return std::string(known);
  // In Oniguruma \p{Han} means the property Script, in PCRE2 Script_Extensions.
  for (std::string items : {fmt::format("\\p{{sc:{}}}", name), fmt::format("\\p{{{}}}", name)})
    if (is_known_to_pcre(items)) return items;
  return {};
}

std::string_view posix_items(std::string_view name) { return find(kPosix, name); }

bool depends_on_case(std::string_view name) {
  constexpr std::string_view kNames[] = {"lu",
                                         "ll",
                                         "lt",
                                         "upper",
                                         "lower",
                                         "uppercase",
                                         "lowercase",
                                         "uppercaseletter",
                                         "lowercaseletter",
                                         "titlecaseletter"};
  return std::ranges::find(kNames, plain(name)) != std::end(kNames);
}

}  // namespace nanovllm
