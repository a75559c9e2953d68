#include "nanovllm/hub/settings.h"

#include "hub_test_util.h"

namespace nanovllm::hub {
namespace {

using ::testing::HasSubstr;

constexpr const char* kVariables[] = {"HF_HUB_CACHE",
                                      "HUGGINGFACE_HUB_CACHE",
                                      "HF_HOME",
                                      "XDG_CACHE_HOME",
                                      "HF_ENDPOINT",
                                      "HF_HUB_OFFLINE",
                                      "HF_TOKEN",
                                      "TRANSFORMERS_OFFLINE",
                                      "HF_TOKEN_PATH",
                                      "HUGGING_FACE_HUB_TOKEN",
                                      "HF_HUB_DOWNLOAD_TIMEOUT"};

class Environment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) ::unsetenv(name);
    ::setenv("HOME", home_.path().c_str(), 1);
  }
  static std::string cache_with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    return Settings::from_environment().cache_folder;
  }
  TempFolder home_;
};
using HubSettings = Environment;

TEST_F(HubSettings, TheCacheIsThatOfHuggingfaceHub) {
  EXPECT_EQ(Settings::from_environment().cache_folder, home_.path(".cache/huggingface/hub"));
  EXPECT_EQ(cache_with("XDG_CACHE_HOME", "/xdg"), "/xdg/huggingface/hub");
  EXPECT_EQ(cache_with("HF_HOME", "~/hf"), home_.path("hf/hub"));
  EXPECT_EQ(cache_with("HF_HUB_CACHE", "/cache"), "/cache");
  for (const char* name : kVariables) ::unsetenv(name);
  ::unsetenv("HOME");
  EXPECT_THAT(error_of([] { Settings::from_environment(); }), HasSubstr("set HF_HOME"));
}

TEST_F(HubSettings, TheEndpoint) {
  EXPECT_EQ(Settings::from_environment().endpoint, "https://huggingface.co");
  ::setenv("HF_ENDPOINT", "https://mirror.example/", 1);
  EXPECT_EQ(Settings::from_environment().endpoint, "https://mirror.example");
  for (const char* wrong : {"mirror.example", "file:///etc", "https://a b"}) {
    ::setenv("HF_ENDPOINT", wrong, 1);
    EXPECT_THAT(error_of([] { Settings::from_environment(); }), HasSubstr(wrong));
  }
}

TEST_F(HubSettings, MessagesShowNoPassword) {
  const auto shown = [](const char* endpoint) {
    Settings settings;
    settings.endpoint = endpoint;
    return settings.shown_endpoint();
  };
  EXPECT_EQ(shown("https://user:secret@hub.example:8080/a@b"), "https://hub.example:8080/a@b");
  EXPECT_EQ(shown("https://hub.example/a@b"), "https://hub.example/a@b");
  ::setenv("HF_ENDPOINT", "ftp://user:secret@hub.example", 1);
  EXPECT_THAT(error_of([] { Settings::from_environment(); }),
              HasSubstr("HF_ENDPOINT is 'ftp://hub.example'"));
}

TEST_F(HubSettings, OfflineAndTimeout) {
  EXPECT_FALSE(Settings::from_environment().is_offline);
  EXPECT_EQ(Settings::from_environment().timeout_seconds, 10);
  for (const char* yes : {"1", "true", "YES", "On"}) {
    ::setenv("HF_HUB_OFFLINE", yes, 1);
    EXPECT_TRUE(Settings::from_environment().is_offline) << yes;
  }
  ::setenv("HF_HUB_OFFLINE", "0", 1);
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "77", 1);
  EXPECT_FALSE(Settings::from_environment().is_offline);
  EXPECT_EQ(Settings::from_environment().timeout_seconds, 77);
}

TEST_F(HubSettings, TheToken) {
  EXPECT_EQ(token_from_environment(), "");
  home_.write(".cache/huggingface/token", "hf_file\n");
  EXPECT_EQ(token_from_environment(), "hf_file");
  home_.write("other", " hf_other ");
  ::setenv("HF_TOKEN_PATH", "~/other", 1);
  EXPECT_EQ(token_from_environment(), "hf_other");
  ::setenv("HF_TOKEN", "hf_variable\n", 1);
  EXPECT_EQ(token_from_environment(), "hf_variable");
  ::setenv("HF_TOKEN", "a\r\nHost: b", 1);
  EXPECT_THAT(error_of([] { token_from_environment(); }), HasSubstr("HF_TOKEN"));
}

}  // namespace
}  // namespace nanovllm::hub
