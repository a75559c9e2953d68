#include "nanovllm/text/template_traits.h"

#include <algorithm>
#include <string_view>

namespace nanovllm {

namespace {

// No template contains these words, so if a prompt has them they come from the messages.
constexpr const char* kWord = "wordofthemessage";
constexpr const char* kOtherWord = "otherofthemessage";
constexpr const char* kKey = "keyofthecall";
constexpr const char* kValue = "valueofthecall";
constexpr const char* kTool = "nameofthetool";

bool has(const std::optional<std::string>& prompt, std::string_view word) {
  return prompt && prompt->find(word) != std::string::npos;
}

size_t count(const std::string& text, std::string_view word) {
  size_t number = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++number;
  return number;
}

Json message(const std::string& role, const Json& content) {
  return {{"role", role}, {"content", content}};
}

/// A conversation in which the assistant calls a tool. `content` may be none.
Json call(const std::optional<Json>& content, const Json& arguments) {
  const Json tool = {
      {"type", "function"},
      {"function",
       {{"name", kTool},
        {"description", "x"},
        {"parameters", {{"type", "object"}, {"properties", {{"x", {{"type", "string"}}}}}}}}}};
  // Mistral's templates want ids of nine characters.
  Json caller = {{"role", "assistant"}};
  if (content) caller["content"] = *content;
  caller["tool_calls"] = Json::array(
      {{{"id", "call00001"},
        {"type", "function"},
        {"function", {{"name", "called" + std::string(kTool)}, {"arguments", arguments}}}}});
  Json result = message("tool", kWord);
  result["tool_call_id"] = "call00001";
  result["name"] = kTool;
  return {{"messages", Json::array({message("user", "x"), caller, result})},
          {"tools", Json::array({tool})}};
}

/// The conversation without the tool's message, which some templates refuse.
Json without_result(Json context) {
  context["messages"].erase(2);
  return context;
}

/// How well a template shows a call: 0 not at all; 1 in a wrong form, with Python's quotes, quotes
/// inside of quotes, or None for the content; 2 correctly.
int quality(const TemplateTraits::Render& render, const std::optional<Json>& content,
            const Json& arguments) {
  std::optional<std::string> prompt = render(call(content, arguments));
  if (!prompt) prompt = render(without_result(call(content, arguments)));
  const std::string name = "called" + std::string(kTool);
  if (!has(prompt, name) || !has(prompt, kKey) || !has(prompt, kValue)) return 0;
  const std::string key = kKey;
  const bool is_odd = has(prompt, "'" + key + "'") || has(prompt, "\\\"" + key);
  const auto usual = render(without_result(call("y", arguments)));
  const bool has_none = count(*prompt, "None") > (usual ? count(*usual, "None") : 0) ||
                        count(*prompt, "null") > (usual ? count(*usual, "null") : 0);
  return is_odd || has_none ? 1 : 2;
}

/// A conversation that a template takes, with `content` in a message of the role.
Json context_with(const std::string& role, const Json& content) {
  if (role == "tool") {
    Json context = call("", Json::object());
    context["messages"][2]["content"] = content;
    context.erase("tools");
    return context;
  }
  Json messages = Json::array();
  if (role == "assistant") messages.push_back(message("user", "x"));
  messages.push_back(message(role, content));
  if (role == "system" || role == "developer") messages.push_back(message("user", "x"));
  return {{"messages", messages}};
}

/// Whether a template reads parts. One that does not prints the whole list, including another
/// field.
bool reads_parts(const std::string& role, const TemplateTraits::Render& render) {
  const Json part = {{"type", "text"}, {"text", kWord}, {"field", kOtherWord}};
  const auto prompt = render(context_with(role, Json::array({part})));
  return has(prompt, kWord) && !has(prompt, kOtherWord);
}

}  // namespace

TemplateTraits TemplateTraits::of(const std::string& source, const Render& render) {
  const auto shows = [&](std::initializer_list<Json> messages,
                         std::initializer_list<std::string_view> words) {
    const auto prompt = render({{"messages", Json(messages)}});
    return std::ranges::all_of(words, [&](std::string_view word) { return has(prompt, word); });
  };
  TemplateTraits traits;
  for (const char* role : {"system", "developer", "user", "assistant", "tool"})
    traits.reads_parts[role] = nanovllm::reads_parts(role, render);
  traits.texts = shows({message("user", kWord)}, {kWord}) || !traits.reads_parts["user"];
  const auto content = [&](const char* word) -> Json {
    if (traits.texts) return word;
    return Json::array({{{"type", "text"}, {"text", word}}});
  };
  const Json user = message("user", content("x")), answer = message("assistant", content("y"));
  const Json system = message("system", content(kWord)),
             other = message("system", content(kOtherWord));
  const Json developer = message("developer", content(kWord));
  traits.system = shows({system, user}, {kWord});
  traits.two_systems = shows({other, system, user}, {kOtherWord, kWord});
  traits.later_system = shows({user, system}, {kWord}) &&
                        shows({other, user, answer, system, user}, {kOtherWord, kWord});
  traits.developer = source.find("developer") != std::string::npos &&
                     shows({developer, user}, {kWord}) &&
                     shows({other, developer, user}, {kOtherWord, kWord}) &&
                     shows({user, answer, developer, user}, {kWord});
  traits.two_answers = shows({user, answer, message("assistant", content(kWord)), user}, {kWord});

  const Json object = {{kKey, kValue}}, text = object.dump();
  int best = 0;
  for (const std::optional<Json>& none :
       {std::optional<Json>(""), std::optional<Json>(Json()), std::optional<Json>()}) {
    const int with_object = quality(render, none, object);
    const int with_text = quality(render, none, text);
    if (std::max(with_object, with_text) <= best) continue;
    best = std::max(with_object, with_text);
    traits.no_content = none;
    traits.takes_objects = with_object == best;
    traits.takes_texts = with_text == best;
  }
  traits.calls = best > 0;
  const Json& arguments = traits.takes_objects ? object : text;
  // Without the call before it, a template that reads calls may refuse the result.
  Json result = call(traits.no_content, arguments);
  if (!traits.calls) result["messages"][1] = answer;
  traits.tool = has(render(result), kWord);
  for (const Json& context : {call(content(kOtherWord), arguments),
                              without_result(call(content(kOtherWord), arguments))}) {
    const auto both = render(context);
    if (!both) continue;
    traits.call_texts = has(both, kOtherWord) && has(both, kKey);
    break;
  }
  return traits;
}

bool template_has_role(const std::string& role, const TemplateTraits& traits,
                       const TemplateTraits::Render& render) {
  Json content = kWord;
  if (!traits.texts) content = Json::array({{{"type", "text"}, {"text", kWord}}});
  const auto prompt = render({{"messages", {message("user", content), message(role, content)}}});
  return prompt && count(*prompt, kWord) == 2;
}

}  // namespace nanovllm
