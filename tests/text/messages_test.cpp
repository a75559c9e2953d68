#include "nanovllm/text/messages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <iostream>

#include "nanovllm/text/chat_template.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const Json kTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};

Json message(const std::string& role, const Json& content) {
  return {{"role", role}, {"content", content}};
}

Json caller(const Json& content, const Json& arguments) {
  return {{"role", "assistant"},
          {"content", content},
          {"tool_calls",
           {{{"id", "call00001"},
             {"type", "function"},
             {"function", {{"name", "lookup"}, {"arguments", arguments}}}}}}};
}

Json result(const Json& content) {
  return {
      {"role", "tool"}, {"tool_call_id", "call00001"}, {"name", "lookup"}, {"content", content}};
}

std::string prompt(const ChatTemplate& chat, const std::vector<Json>& messages,
                   const Json& more = Json::object()) {
  Json context = {{"messages", messages}, {"add_generation_prompt", true}};
  context.update(more);
  return chat.prompt(context);
}

const Json kTools = {{"tools",
                      {{{"type", "function"},
                        {"function",
                         {{"name", "lookup"},
                          {"description", "Looks up"},
                          {"parameters",
                           {{"type", "object"},
                            {"properties", {{"city", {{"type", "string"}, {"description", "x"}}}}},
                            {"required", {"city"}}}}}}}}}};

/// Calls visit(name, template) for the published templates that render a plain conversation.
/// Returns their number.
int for_each_published(const std::function<void(const std::string&, const ChatTemplate&)>& visit) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kSharedData + "/templates")) {
    if (entry.path().extension() != ".jinja") continue;
    std::ifstream file(entry.path());
    const std::string source((std::istreambuf_iterator<char>(file)), {});
    const ChatTemplate chat(source, kTokens, "t");
    try {
      prompt(chat, {message("user", "hello")});
    } catch (const UserError&) {
      continue;  // needs variables of its own
    }
    ++count;
    visit(entry.path().filename(), chat);
  }
  return count;
}

// What a client sends is in the prompt, whatever the template expects, or there is an error.
TEST(Messages, NothingIsLostInAnyPublishedTemplate) {
  if (!has_shared("templates")) GTEST_SKIP() << kSharedData << "/templates is not there";
  const Json user = message("user", "hello"), later = message("user", "go on");
  const Json answer = message("assistant", "well");
  const Json arguments = {{"place", "paris"}};
  struct Case {
    std::string name;
    std::vector<Json> messages;
    std::vector<std::string> words;
    Json more = Json::object();
  };
  const std::vector<Case> cases = {
      {"developer", {message("developer", "BANANA"), user}, {"BANANA", "hello"}},
      {"system", {message("system", "BANANA"), user}, {"BANANA", "hello"}},
      {"two systems",
       {message("system", "BANANA"), message("developer", "CHERRY"), user},
       {"BANANA", "CHERRY", "hello"}},
      {"system at the end", {user, message("system", "BANANA")}, {"hello", "BANANA"}},
      {"system in the middle",
       {message("system", "CHERRY"), user, answer, message("system", "BANANA"), later},
       {"CHERRY", "hello", "well", "BANANA", "go on"}},
      {"system after a result",
       {user, caller(nullptr, arguments), result("DONE"), message("system", "BANANA")},
       {"lookup", "paris", "DONE", "BANANA"},
       kTools},
      {"call with null",
       {user, caller(nullptr, arguments.dump()), result("DONE"), answer, later},
       {"lookup", "place", "paris", "DONE", "go on"},
       kTools},
      {"call with a text",
       {user, caller("hm", arguments.dump()), result("DONE"), answer, later},
       {"lookup", "place", "paris", "DONE", "go on"},
       kTools},
      {"result as parts",
       {user, caller("", arguments), result({{{"type", "text"}, {"text", "DONE"}}}), answer, later},
       {"lookup", "paris", "DONE"},
       kTools},
      {"parts",
       {message("system", {{{"type", "text"}, {"text", "BANANA"}}}),
        message("user", {{{"type", "text"}, {"text", "CHERRY"}}, "hello"})},
       {"BANANA", "CHERRY", "hello"}},
  };
  std::map<std::string, int> num_refused;
  const int count = for_each_published([&](const std::string& name, const ChatTemplate& chat) {
    for (const Case& c : cases) {
      try {
        const std::string text = prompt(chat, c.messages, c.more);
        for (const std::string& word : c.words)
          EXPECT_THAT(text, HasSubstr(word)) << name << ": " << c.name;
        EXPECT_THAT(text, Not(HasSubstr("'place'"))) << name << ": " << c.name;
        EXPECT_THAT(text, Not(HasSubstr("\\\"place"))) << name << ": " << c.name;
      } catch (const UserError& e) {
        ++num_refused[c.name];
        std::cout << name << ": " << c.name << ": " << e.what() << "\n";
      }
    }
  });
  std::cout << count << " templates\n";
  for (const auto& [name, number] : num_refused) std::cout << name << ": " << number << " refuse\n";
  EXPECT_GT(count, 100);
}

TEST(Messages, ATextBesideACallIsAMessageOfItsOwnIfTheTemplateDropsIt) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{% for c in m.tool_calls %}"
      "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% else %}"
      "{{ m.content }}{% endif %};{% endfor %}",
      kTokens, "t");
  EXPECT_EQ(prompt(chat, {message("user", "a"), caller("hm", "{\"x\": 1}"), result("r")}),
            "user:a;assistant:hm;assistant:lookup({\"x\": 1});tool:r;");
  EXPECT_EQ(prompt(chat, {message("user", "a"), caller("", "{\"x\": 1}"), result("r")}),
            "user:a;assistant:lookup({\"x\": 1});tool:r;");
}

TEST(Messages, ATemplateThatReadsOnlyPartsGetsParts) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %};"
      "{% endfor %}",
      kTokens, "t");
  EXPECT_EQ(prompt(chat, {message("system", "s"), message("user", "a")}), "system:s;user:a;");
}

// Two forms of the same conversation give the same prompt.
TEST(Messages, FormsThatMeanTheSameGiveTheSamePrompt) {
  if (!has_shared("templates")) GTEST_SKIP() << kSharedData << "/templates is not there";
  const Json user = message("user", "hello"), later = message("user", "go on");
  const Json arguments = {{"place", "paris"}};
  Json no_calls = message("assistant", "well"), absent = caller("", arguments);
  no_calls["tool_calls"] = Json::array();
  absent.erase("content");
  Json first = message("assistant", "well"), second = first;
  first["reasoning"] = second["reasoning_content"] = "because";
  const std::vector<std::pair<std::vector<Json>, std::vector<Json>>> pairs = {
      {{user, no_calls, later}, {user, message("assistant", "well"), later}},
      {{user, caller(nullptr, arguments), result("done"), later},
       {user, caller("", arguments), result("done"), later}},
      {{user, absent, result("done"), later},
       {user, caller("", arguments.dump()), result("done"), later}},
      {{user, first, later}, {user, second, later}},
      {{message("developer", "x"), user}, {message("system", "x"), user}},
  };
  for_each_published([&](const std::string& name, const ChatTemplate& chat) {
    const std::string own = prompt(chat, {message("developer", "x"), user});
    const bool has_developer = own != prompt(chat, {message("system", "x"), user});
    for (size_t i = 0; i < pairs.size() - (has_developer ? 1 : 0); ++i) {
      std::string a, b;
      try {
        a = prompt(chat, pairs[i].first, kTools);
      } catch (const UserError& e) {
        a = e.what();
      }
      try {
        b = prompt(chat, pairs[i].second, kTools);
      } catch (const UserError& e) {
        b = e.what();
      }
      EXPECT_EQ(a, b) << name << " " << i;
    }
  });
}

const char* const kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(Messages, AreObjectsWithARoleAndAContent) {
  for (const auto& [messages, what] :
       {std::pair("null", "messages is missing"),
        std::pair("[]", "messages must be a list of at least one message"),
        std::pair("[5]", "messages[0] must be an object with a role and a content"),
        std::pair(R"([{"role": "user"}, {"role": 5}])", "messages[1] must have a role, a text"),
        std::pair(R"([{"role": "user", "content": 5}])",
                  "messages[0] must have a content that is a text or a list of parts")})
    EXPECT_THAT([&] { check_messages(Json::parse(messages)); }, ThrowsMessage<UserError>(what));
  EXPECT_NO_THROW(
      check_messages(Json::parse(R"([{"role": "a", "content": null}, {"role": "b"}])")));
}

TEST(Messages, AnUnknownRoleThatTheTemplateLeavesOutIsRefusedByName) {
  const ChatTemplate chat(
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.role }}: "
      "{{ m.content }}\n{% endif %}{% endfor %}",
      kTokens, "t");
  EXPECT_THAT(
      [&] {
        prompt(chat, {message("user", "a"), message("critic", "b")});
      },
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("messages[1] has the role \"critic\""), HasSubstr("not supported"))));
  EXPECT_EQ(prompt(chat, {message("system", "s"), message("user", "a")}), "user: s\n\na\n");
  EXPECT_EQ(prompt(chat, {message("user", "a"), message("system", "s")}), "user: a\n\ns\n");
  EXPECT_EQ(prompt(chat, {message("user", "a"), message("assistant", "b"), message("system", "s")}),
            "user: a\nassistant: b\nuser: s\n");
  EXPECT_EQ(prompt(chat, {message("user", "a"), caller(nullptr, "{\"x\": 1}"), result("r")}),
            "user: a\nassistant: <tool_call>\n{\"name\":\"lookup\",\"arguments\":{\"x\":1}}\n"
            "</tool_call>\nuser: <tool_response>\nr\n</tool_response>\n");
}

TEST(Messages, ChatMlGetsEveryMessageAtItsPlace) {
  const ChatTemplate chat(kChatMl, kTokens, "t");
  EXPECT_EQ(prompt(chat, {message("developer", "d"), message("user", nullptr)}),
            "<|im_start|>system\nd<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(prompt(chat, {message("user", "a"), message("critic", "b")}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>critic\nb<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(Messages, TheAnswerContinuesTheLastMessage) {
  const ChatTemplate chat(kChatMl, kTokens, "t");
  const Json more = {{"continue_final_message", true}};
  EXPECT_EQ(prompt(chat, {message("user", "a"), message("assistant", "Well, ")}, more),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nWell, ");
  EXPECT_EQ(prompt(chat, {message("user", "a")}, more), "<|im_start|>user\na");
  const ChatTemplate parts(
      "{% for m in messages %}{% for p in m.content %}{{ m.role }}:{{ p.text }}\n{% endfor %}"
      "{% endfor %}",
      kTokens, "t");
  EXPECT_EQ(prompt(parts, {message("user", "a"), message("assistant", "Well")}, more),
            "user:a\nassistant:Well");
  EXPECT_THAT(
      [&] {
        prompt(chat, {message("user", "a"), message("assistant", "")}, more);
      },
      ThrowsMessage<UserError>(HasSubstr("continue_final_message")));
}

TEST(Messages, WrongShapesAreRefused) {
  const ChatTemplate chat(kChatMl, kTokens, "t");
  const auto refuse = [&](const Json& wrong, const std::string& what) {
    EXPECT_THAT(
        [&] {
          prompt(chat, {message("user", "a"), wrong});
        },
        ThrowsMessage<UserError>(HasSubstr(what)))
        << wrong;
  };
  refuse("text", "an object with a role");
  refuse({{"content", "a"}}, "a role, a text");
  refuse({{"role", 1}}, "a role, a text");
  refuse(message("user", 5), "a text or a list of parts");
  refuse(message("user", {5}), "neither a text nor an object with a type");
  refuse(message("user", {{{"type", "image_url"}}}), "image_url");
  refuse({{"role", "assistant"}, {"tool_calls", {5}}}, "a function with a name");
  refuse({{"role", "assistant"}, {"tool_calls", 5}}, "that are a list");
}

}  // namespace
}  // namespace nanovllm
