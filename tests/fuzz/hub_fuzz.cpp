// What a hub says about a model and, after a line of dashes, the index of its weights.

#include <stdexcept>

#include "nanovllm/base/check.h"
#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/remote_model.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  std::string_view input = text_of(data, size);
  expect_user_errors_only([&] {
    hub::RemoteModel model;
    const std::string_view answer = take_part(input);
    try {
      model = hub::parse_remote_model(answer, "the hub");
    } catch (const UserError&) {
      throw;
    } catch (const std::runtime_error& e) {  // a hub's mistake, not the user's
      fail("{}", e.what());
    }
    check(hub::is_commit(model.commit), "a commit that is none");
    const auto small = model.small_files("org/name");
    const auto weights =
        model.weight_files("org/name", model.has_shards() ? hub::shards_of_index(input, "the index")
                                                          : std::set<std::string>());
    for (const auto* files : {&small, &weights})
      for (const hub::RemoteFile& file : *files)
        check(hub::is_hex(file.digits, file.digits.size()), "a checksum that may be a path");
    for (const hub::RemoteFile& file : weights)
      check(file.name.front() != '.' && file.name.find('/') == std::string::npos &&
                file.name.ends_with(".safetensors"),
            "weights that are no safetensors file of the folder");
  });
  return 0;
}
