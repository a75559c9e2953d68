#include "nanovllm/ops/cpu/onednn_matmul.h"

#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <latch>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/system/threads.h"
#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cpu/memory.h"

namespace nanovllm::cpu {

namespace {

/// What a primitive is compiled for: rows, n, k, x_stride, out_stride, out_f32, bias.
using Key = std::array<int64_t, 7>;

/// A primitive and its operands, whose memory is set at each call.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory x, w, bias, out, scratch;
  std::unordered_map<int, dnnl::memory> arguments;
};

/// A primitive takes 0.1 ms to make and some kilobytes; prompts come in all lengths.
constexpr size_t kMaxProducts = 256;

/// Where libgomp cannot start its threads it ends the process: so they are tried before, at the
/// same time, once for each thread that calls.
void try_threads(int count) {
  static thread_local int num_tried = 1;
  if (count <= num_tried) return;
  std::latch go(1);
  std::vector<std::jthread> threads;
  try {
    for (int i = 1; i < count; ++i)
      threads.push_back(start_thread("a thread of oneDNN", [&go] { go.wait(); }));
  } catch (...) {
    go.count_down();
    throw;
  }
  go.count_down();
  num_tried = count;
}

}  // namespace

struct OnednnMatmul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Product> products;
  Buffer scratch;
  size_t scratch_bytes = 0;

  Product make(const GemmCall& call, int64_t rows);
};

OnednnMatmul::OnednnMatmul()
    : impl_(std::make_unique<Impl>()),
      // With AMX from two tiles of 16 rows on; without it the two are within 10%, ours the faster
      // where weights come from memory.
      min_rows_(dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx ? 32 : 256) {}

OnednnMatmul::~OnednnMatmul() = default;

Product OnednnMatmul::Impl::make(const GemmCall& call, int64_t rows) {
  using dnnl::memory;
  using Type = memory::data_type;
  const memory::desc x({rows, call.k}, Type::bf16, memory::dims{call.x_stride, 1});
  const memory::desc w({call.k, call.n}, Type::bf16, memory::format_tag::BA16a32b2a);
  const memory::desc out({rows, call.n}, call.out_f32 ? Type::f32 : Type::bf16,
                         memory::dims{call.out_stride, 1});
  const memory::desc bias({1, call.n}, Type::f32, memory::dims{call.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto operation =
      call.bias ? dnnl::matmul::desc(x, w, bias, out) : dnnl::matmul::desc(x, w, out);
  const dnnl::matmul::primitive_desc description(operation, attributes, engine);
  const auto none = [&](const memory::desc& desc) { return memory(desc, engine, nullptr); };
  Product p{dnnl::matmul(description),           none(x), none(w), none(bias), none(out),
            none(description.scratchpad_desc()), {}};
  p.arguments = {{DNNL_ARG_SRC, p.x},
                 {DNNL_ARG_WEIGHTS, p.w},
                 {DNNL_ARG_DST, p.out},
                 {DNNL_ARG_SCRATCHPAD, p.scratch}};
  if (call.bias) p.arguments.insert({DNNL_ARG_BIAS, p.bias});
  return p;
}

void OnednnMatmul::run(const GemmCall& call, int64_t rows) {
  Impl& impl = *impl_;
  const Key key = {
      rows, call.n, call.k, call.x_stride, call.out_stride, call.out_f32, call.bias != nullptr};
  auto it = impl.products.find(key);
  if (it == impl.products.end()) {
    if (impl.products.size() == kMaxProducts) impl.products.clear();
    it = impl.products.emplace(key, impl.make(call, rows)).first;
    const size_t bytes = it->second.scratch.get_desc().get_size();
    if (bytes > impl.scratch_bytes) {
      impl.scratch = allocate(bytes);
      impl.scratch_bytes = bytes;
    }
  }
  Product& p = it->second;
  p.x.set_data_handle(const_cast<void*>(call.x));
  p.w.set_data_handle(const_cast<void*>(call.panels));
  p.out.set_data_handle(call.out);
  p.scratch.set_data_handle(impl.scratch.get());
  if (call.bias) p.bias.set_data_handle(const_cast<float*>(call.bias));
  try_threads(omp_get_max_threads());
  p.primitive.execute(impl.stream, p.arguments);
  impl.stream.wait();
}

}  // namespace nanovllm::cpu
