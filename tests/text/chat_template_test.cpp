#include "nanovllm/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/jinja/interpreter.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A checkpoint folder that the destructor removes.
class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "chat_template_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(ChatTemplate, RendersTheGoldensAsTransformers) {
  const auto chat = ChatTemplate::load(kTinyTales);
  ASSERT_TRUE(chat.has_value());
  const auto tokenizer = Tokenizer::load(kTinyTales);
  int count = 0;
  for (const Json& row :
       read_json_lines(std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/tiny-tales.jsonl")) {
    if (!row.contains("messages")) continue;
    ++count;
    const std::string prompt = chat->render({{"messages", row["messages"]},
                                             {"add_generation_prompt", true},
                                             {"enable_thinking", row["enable_thinking"]}});
    EXPECT_EQ(tokenizer->encode(prompt, false), row["prompt_token_ids"].get<std::vector<int32_t>>())
        << prompt;
  }
  EXPECT_GT(count, 5);
}

TEST(ChatTemplate, SpecialTokensOfOlderFolders) {
  const Folder folder;
  folder.write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
  folder.write("special_tokens_map.json",
               R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"})");
  const auto rendered = [&] { return ChatTemplate::load(folder.path())->render(Json::object()); };
  EXPECT_EQ(rendered(), "<s></s>");
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(rendered(), "<s></s>");
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>", "added_tokens_decoder": {}})");
  EXPECT_EQ(rendered(), "<end>");
}

TEST(ChatTemplate, WhatCannotBeUsedIsAnErrorWhenItIsRendered) {
  const Folder folder;
  const auto error = [&] {
    const ChatTemplate later = ChatTemplate::load_for_later(folder.path(), "; look elsewhere");
    try {
      later.prompt({{"messages", {{{"role", "user"}, {"content", "x"}}}}});
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error(), "the model has no chat template; look elsewhere");
  folder.write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(error(), HasSubstr("chat_template.jinja, line 1"));
  folder.write("chat_template.jinja", "x");
  EXPECT_EQ(error(), "none");
}

TEST(ChatTemplate, RendersTinyTalesByHand) {
  const auto chat = ChatTemplate::load(kTinyTales);
  const Json messages = {{{"role", "system"}, {"content", "Be brief."}},
                         {{"role", "user"}, {"content", "Hi"}},
                         {{"role", "assistant"}, {"content", "<think>\nHm\n</think>\n\nHello."}},
                         {{"role", "user"}, {"content", "Bye"}}};
  EXPECT_EQ(
      chat->render(
          {{"messages", messages}, {"add_generation_prompt", true}, {"enable_thinking", false}}),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  try {
    chat->render({{"messages", {{{"role", "tool"}, {"content", ""}}}}});
    FAIL() << "the template must refuse the role";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("Tiny Tales knows the roles system, user and assistant, not tool"));
    EXPECT_THAT(error.what(), HasSubstr("chat_template, line 11, column 24: Tiny Tales"));
  }
}

std::time_t parse_time(const std::string& text) {
  std::tm tm{};
  strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &tm);
  return timegm(&tm);
}

TEST(ChatTemplate, RendersThirdPartyConversations) {
  const std::string path = kSharedData + "/conformance/chat_renderings.jsonl";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not here";
  int right = 0, total = 0;
  for (const Json& row : read_json_lines(path)) {
    const jinja::Template parsed(row["template"].get<std::string>(), "template");
    const std::time_t now = row["now"].is_null() ? 0 : parse_time(row["now"].string());
    const std::string prompt =
        jinja::Interpreter(parsed, jinja::Budget(), now).render(row["context"], Json::object());
    EXPECT_EQ(prompt, row["expected"].get<std::string>()) << row["model"] << " " << row["case"];
    ++total;
    right += prompt == row["expected"].get<std::string>() ? 1 : 0;
  }
  EXPECT_EQ(right, total);
  EXPECT_EQ(total, 446);
}

TEST(ChatTemplate, ParsesEveryThirdPartyTemplate) {
  if (!has_shared("templates")) GTEST_SKIP() << kSharedData << "/templates is not here";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kSharedData + "/templates")) {
    if (entry.path().extension() != ".jinja") continue;
    ++count;
    EXPECT_NO_THROW(
        ChatTemplate(read_file(entry.path(), kMaxTemplateBytes), Json::object(), entry.path()))
        << entry.path();
  }
  EXPECT_EQ(count, 170);
}

TEST(ChatTemplate, RendersQwen3) {
  if (!has_shared("qwen3")) GTEST_SKIP() << kSharedData << "/qwen3 is not here";
  const auto chat = ChatTemplate::load(kSharedData + "/qwen3");
  ASSERT_TRUE(chat.has_value());
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  const std::string user = "<|im_start|>user\nHi<|im_end|>\n";
  EXPECT_EQ(chat->render({{"messages", messages}}), user);
  EXPECT_EQ(chat->render({{"messages", messages}, {"add_generation_prompt", true}}),
            user + "<|im_start|>assistant\n");
  EXPECT_EQ(
      chat->render(
          {{"messages", messages}, {"add_generation_prompt", true}, {"enable_thinking", false}}),
      user + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

std::string prompt_of(const std::string& source, const Json& messages) {
  return ChatTemplate(source, Json::object(), "template").prompt({{"messages", messages}});
}

const Json kParts = {{{"type", "text"}, {"text", "one"}}, "two"};

TEST(ChatTemplate, PartsAreJoinedForATemplateThatWantsATextIn) {
  const Json user = Json::array({{{"role", "user"}, {"content", kParts}}});
  for (const char* content :
       {"m.content", "m.content if m.content is string else ''", "m['content'] | string",
        "(m.content if m.content is string else m.content|tojson)",
        "raise_exception('a list') if m.content is not string else m.content"})
    EXPECT_EQ(
        prompt_of(std::string("{% for m in messages %}<{{ ") + content + " }}>{% endfor %}", user),
        "<one\ntwo>")
        << content;
  // the form of Qwen's templates
  const auto chat = ChatTemplate::load(kTinyTales);
  EXPECT_EQ(chat->prompt({{"messages", user}}), "<|im_start|>user\none\ntwo<|im_end|>\n");
  EXPECT_EQ(
      prompt_of("{{ messages[0].content }}", {{{"role", "user"}, {"content", Json::array()}}}), "");
}

TEST(ChatTemplate, PartsGoToATemplateThatReadsThem) {
  const Json user = Json::array({{{"role", "user"}, {"content", kParts}}});
  const std::string macro =
      "{% macro say(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}[{{ p.text }}]{% "
      "endfor %}{% endif %}{% endmacro %}";
  for (const std::string& source :
       {std::string("{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' "
                    "%}[{{ p['text'] }}]{% endif %}{% endfor %}{% endfor %}"),
        std::string("{% for m in messages %}{% set c = m.content %}{% for p in c %}[{{ p.text "
                    "}}]{% endfor %}{% endfor %}"),
        macro + "{% for m in messages %}{{ say(m['content']) }}{% endfor %}"})
    EXPECT_EQ(prompt_of(source, user), "[one][two]") << source;
  // The result may differ between roles, as in Llama 3.2 Vision's template.
  const std::string mixed =
      macro +
      "{% for m in messages %}{{ m.content if m.role == 'system' else say(m.content) "
      "}};{% endfor %}";
  EXPECT_EQ(prompt_of(mixed, {{{"role", "system"}, {"content", kParts}},
                              {{"role", "user"}, {"content", kParts}}}),
            "one\ntwo;[one][two];");
}

TEST(ChatTemplate, PartsInMessagesOfEveryRole) {
  // Refuses what no conversation has: a first turn that is the assistant's, a result without a
  // call.
  const std::string checks =
      "{% for m in messages %}{% if m.role == 'assistant' and loop.first %}{{ raise_exception('who "
      "began?') }}{% endif %}{% if m.role == 'tool' and loop.previtem.tool_calls is not defined "
      "%}{{ raise_exception('no call') }}{% endif %}";
  const std::string reads = checks +
                            "{{ m.role }}:{% for p in m.content if p.text is defined %}[{{ p.text "
                            "}}]{% endfor %};{% endfor %}";
  const std::string prints = checks + "{{ m.role }}:{{ m.content }};{% endfor %}";
  const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", {}}}}};
  const Json messages = {
      {{"role", "system"}, {"content", kParts}},
      {{"role", "developer"}, {"content", kParts}},
      {{"role", "narrator"}, {"content", kParts}},
      {{"role", "user"}, {"content", "text"}},
      {{"role", "assistant"}, {"content", kParts}, {"tool_calls", Json::array({call})}},
      {{"role", "tool"}, {"content", kParts}}};
  EXPECT_EQ(prompt_of(reads, messages),
            "system:[one][two];system:[one][two];narrator:[one][two];user:[text];"
            "assistant:[one][two][<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>];"
            "user:[<tool_response>\none\ntwo\n</tool_response>];");
  EXPECT_EQ(prompt_of(prints, messages),
            "system:one\ntwo;system:one\ntwo;narrator:one\ntwo;user:text;assistant:one\ntwo\n"
            "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>;"
            "user:<tool_response>\none\ntwo\n</tool_response>;");
}

TEST(ChatTemplate, MessagesThatAreNotOpenAis) {
  EXPECT_EQ(prompt_of("{{ messages }}", 5), "5");
  EXPECT_THROW(prompt_of("{{ messages }}", {"a", {{"role", "user"}}}), UserError);
  const ChatTemplate chat("x{{ messages }}", Json::object(), "template");
  EXPECT_EQ(chat.prompt(Json::object()), "x");
  for (const Json& context : {Json(), Json(5), Json::array()}) {
    EXPECT_THROW(chat.prompt(context), UserError);
    EXPECT_THROW(chat.render(context), UserError);
  }
}

TEST(ChatTemplate, PartsThatAreNotTextAreRefusedByName) {
  const auto error = [](const Json& part) {
    for (const char* source :
         {"{{ messages[0].content }}",
          "{% for p in messages[0].content %}{{ p.text or '<image>' }}{% endfor %}"}) {
      try {
        prompt_of(source, {{{"role", "user"}, {"content", Json::array({part})}}});
        ADD_FAILURE() << part << " in " << source;
      } catch (const UserError& e) {
        if (std::string_view(source).starts_with("{%")) return std::string(e.what());
      }
    }
    return std::string();
  };
  EXPECT_EQ(error({{"type", "image_url"}, {"image_url", {{"url", "http://x"}}}}),
            "messages[0] has a part of the type \"image_url\", which is not supported: this model "
            "reads only text (--allow-dropped-media replaces such parts by a text that says so)");
  EXPECT_THAT(error({{"type", "image\nb"}}), HasSubstr("\"image\\nb\""));
  EXPECT_THAT(error({{"type", "text"}}), HasSubstr("'text'"));
  EXPECT_THAT(error({{"type", "text"}, {"text", 1}}), HasSubstr("'text'"));
  for (const Json& part : {Json({{"text", "x"}}), Json(5), Json({{"type", 5}})})
    EXPECT_THAT(error(part), HasSubstr("nor an object with a type"));
}

TEST(ChatTemplate, FolderWithoutATemplate) {
  const Folder folder;
  EXPECT_FALSE(ChatTemplate::load(folder.path()).has_value());
  folder.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_FALSE(ChatTemplate::load(folder.path()).has_value());
}

TEST(ChatTemplate, TheFileHasPrecedence) {
  const Folder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": null, "pad_token": {}})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(Json::object()), "config");
  folder.write(
      "chat_template.jinja",
      "{{ bos_token }}{{ eos_token }}{{ unk_token is defined or pad_token is defined }}\n");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(Json::object()), "<s></s>False");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render({{"bos_token", "[B]"}}), "[B]</s>False");
}

TEST(ChatTemplate, ToolsUseTheToolTemplate) {
  const Folder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]})");
  const auto chat = ChatTemplate::load(folder.path());
  EXPECT_EQ(chat->render({{"messages", Json::array()}}), "plain");
  EXPECT_EQ(chat->render({{"tools", nullptr}}), "plain");
  EXPECT_EQ(chat->render({{"tools", {{{"type", "function"}}}}}), "tools");
  EXPECT_TRUE(chat->mentions("plai") && chat->mentions("tool"));
  EXPECT_FALSE(chat->mentions("other"));
  folder.write("tokenizer_config.json", R"({"chat_template": "one for all"})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render({{"tools", Json::array()}}), "one for all");
  folder.write("chat_template.jinja", "file");
  folder.write("additional_chat_templates/tool_use.jinja", "file for tools");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render({{"tools", Json::array()}}),
            "file for tools");
}

TEST(ChatTemplate, BadFilesAreNamed) {
  const Folder folder;
  const auto error = [&] {
    try {
      ChatTemplate::load(folder.path());
      return std::string();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
  };
  folder.write("tokenizer_config.json", R"({"chat_template": "a\n{% if %}"})");
  EXPECT_EQ(error(), folder.path() +
                         ": tokenizer_config.json's chat_template, line 2, column 7: expected an "
                         "expression, got '%}'");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(error(), HasSubstr("one named 'default'"));
  folder.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(error(), HasSubstr("neither a string nor a list"));
  for (const char* entries : {"[5]", R"([{"name": "default"}])", R"([{"template": 5}])"}) {
    folder.write("tokenizer_config.json", R"({"chat_template": )" + std::string(entries) + "}");
    EXPECT_THAT(error(), HasSubstr("chat_template contains an entry without a string 'template'"));
  }
  folder.write("tokenizer_config.json", "[]");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: not a JSON object"));
  folder.write("tokenizer_config.json", "[");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json"));
  folder.write("chat_template.jinja", "{{ 'x }}");
  folder.write("tokenizer_config.json", "{}");
  EXPECT_THAT(
      error(),
      HasSubstr("chat_template.jinja, line 1, column 4: a string without its closing quote"));
}

TEST(ChatTemplate, RendersInSeveralThreads) {
  const auto chat = ChatTemplate::load(kTinyTales);
  std::vector<std::thread> threads;
  std::vector<std::string> prompts(4);
  for (size_t t = 0; t < prompts.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i)
        prompts[t] = chat->render({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& prompt : prompts) EXPECT_EQ(prompt, "<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, ALongConversationStaysWithinTheLimits) {
  const auto chat = ChatTemplate::load(kTinyTales);
  Json messages = Json::array();
  for (int i = 0; i < 4000; ++i)
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(1000, 'a')}});
  messages.push_back({{"role", "user"}, {"content", std::string(4 << 20, 'b')}});
  EXPECT_GT(chat->render({{"messages", messages}}).size(), 8'000'000);
}

}  // namespace
}  // namespace nanovllm
