#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "python/convert.h"
#include "python/views/views.h"

namespace nb = nanobind;

namespace nanovllm::python {

namespace {

void init_sequence(SequenceView* view, nb::handle token_ids, nb::handle sampling_params) {
  auto seq = std::make_unique<Sequence>();
  seq->token_ids = to_token_ids(token_ids, "token_ids");
  require(!seq->token_ids.empty(), "token_ids is empty; a sequence starts with a prompt");
  seq->num_prompt_tokens = seq->num_known();
  SamplingParams params;
  if (!sampling_params.is_none()) params = to_sampling_params(sampling_params);
  params.validate();
  require(params.n == 1, "n is {}; a sequence is one answer, so make {} sequences", params.n,
          params.n);
  seq->max_tokens = params.max_tokens;
  seq->params = std::make_shared<const RequestParams>(RequestParams{.given = std::move(params)});
  static int64_t next_id = 0;
  new (view) SequenceView{.seq_id = next_id++, .own = std::move(seq)};
  view->seq = view->own.get();
}

/// nano-vLLM's class attribute Sequence.block_size, if a script has set it; 0 otherwise. Until then
/// the class has the property of this name, which is not a number.
int64_t set_block_size() {
  int64_t size = 0;
  if (nb::try_cast(nb::object(nb::type<SequenceView>().attr("block_size")), size))
    require_block_size(size);
  return size;
}

std::vector<int32_t> part(const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
  return {ids.begin() + begin, ids.begin() + end};
}

}  // namespace

int64_t SequenceView::block_size() const {
  if (blocks) return blocks->block_size();
  const int64_t size = set_block_size();
  return size > 0 ? size : kDefaultBlockSize;
}

void SequenceView::set_blocks(const Blocks& given) {
  const int64_t size = set_block_size();
  require(size == 0 || size == given->block_size(),
          "Sequence.block_size is {}, and the blocks have {} tokens; set it to the same", size,
          given->block_size());
  blocks = given;
}

void bind_sequence(nb::module_& m) {
  using V = SequenceView;
  nb::enum_<SequenceStatus>(m, "SequenceStatus")
      .value("WAITING", SequenceStatus::kWaiting)
      .value("RUNNING", SequenceStatus::kRunning)
      .value("FINISHED", SequenceStatus::kFinished);
  nb::class_<V>(m, "Sequence",
                "One answer while it is generated: the prompt, the tokens that were drawn, and the "
                "blocks where their keys and values are stored.")
      .def("__init__", &init_sequence, nb::arg("token_ids"),
           nb::arg("sampling_params") = nb::none())
      .def("__len__", [](const V& v) { return v.seq->token_ids.size(); })
      // The item is a separate object, because an accessor would refer to the list, which is
      // temporary.
      .def("__getitem__",
           [](const V& v, nb::handle key) -> nb::object { return nb::cast(v.seq->token_ids)[key]; })
      .def("__iter__", [](const V& v) { return nb::iter(nb::cast(v.seq->token_ids)); })
      .def("__repr__",
           [](const V& v) {
             static constexpr const char* kNames[] = {"WAITING", "RUNNING", "FINISHED"};
             return fmt::format("Sequence(seq_id={}, {}, {} tokens, block_table=[{}])", v.seq_id,
                                kNames[static_cast<size_t>(v.seq->status)], v.seq->num_known(),
                                fmt::join(v.seq->block_table, ", "));
           })
      .def_ro("seq_id", &V::seq_id)
      .def_prop_ro("status", [](const V& v) { return v.seq->status; })
      .def_prop_ro("is_finished", [](const V& v) { return v.seq->is_finished(); })
      .def_prop_ro("token_ids", [](const V& v) { return v.seq->token_ids; })
      .def_prop_ro("prompt_token_ids",
                   [](const V& v) { return part(v.seq->token_ids, 0, v.seq->num_prompt_tokens); })
      .def_prop_ro("completion_token_ids",
                   [](const V& v) {
                     return part(v.seq->token_ids, v.seq->num_prompt_tokens, v.seq->num_known());
                   })
      .def_prop_ro("last_token", [](const V& v) { return v.seq->token_ids.back(); })
      .def_prop_ro("num_tokens", [](const V& v) { return v.seq->num_known(); })
      .def_prop_ro("num_prompt_tokens", [](const V& v) { return v.seq->num_prompt_tokens; })
      .def_prop_ro("num_completion_tokens",
                   [](const V& v) { return v.seq->num_known() - v.seq->num_prompt_tokens; })
      .def_prop_ro(
          "num_cached_tokens", [](const V& v) { return v.seq->num_cached_tokens.value_or(0); },
          "Tokens found in the prefix cache at the first admission.")
      .def_prop_ro(
          "num_computed_tokens", [](const V& v) { return v.seq->num_computed; },
          "Tokens whose keys and values are stored, or will be by a step that was scheduled.")
      .def_ro("num_scheduled_tokens", &V::num_scheduled,
              "Tokens that the latest schedule() computes for it; 0 after its postprocess().")
      .def_prop_ro("block_table", [](const V& v) { return v.seq->block_table; })
      .def_prop_ro("block_size", &V::block_size)
      .def_prop_ro("num_blocks", &V::num_blocks, "Blocks that its tokens fill, the last in part.")
      .def_prop_ro("num_cached_blocks",
                   [](const V& v) { return v.seq->num_cached_tokens.value_or(0) / v.block_size(); })
      .def_prop_ro(
          "last_block_num_tokens",
          [](const V& v) { return v.seq->num_known() - (v.num_blocks() - 1) * v.block_size(); })
      .def(
          "block",
          [](const V& v, int64_t i) {
            require(i >= 0 && i < v.num_blocks(), "block {} of a sequence that has {}", i,
                    v.num_blocks());
            const int64_t begin = i * v.block_size();
            return part(v.seq->token_ids, begin,
                        std::min(begin + v.block_size(), v.seq->num_known()));
          },
          nb::arg("i"), "The token ids in its i-th block.")
      .def_prop_ro("temperature", [](const V& v) { return v.seq->params->given.temperature; })
      .def_prop_ro("max_tokens", [](const V& v) { return v.seq->params->given.max_tokens; })
      .def_prop_ro("ignore_eos", [](const V& v) { return v.seq->params->given.ignore_eos; })
      .def(
          "append_token",
          [](V& v, int32_t token_id) {
            v.require_own("append tokens: call its postprocess()");
            v.seq->token_ids.push_back(token_id);
          },
          nb::arg("token_id"), "Adds a token by hand, for experiments with a BlockManager alone.");
}

}  // namespace nanovllm::python
