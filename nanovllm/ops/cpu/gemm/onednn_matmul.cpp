#include "nanovllm/ops/cpu/gemm/onednn_matmul.h"

#include <omp.h>

#include <csetjmp>
#include <csignal>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

namespace nanovllm::cpu {

namespace {

/// A primitive takes 0.1 ms to compile and some kilobytes; prompts come in all lengths.
constexpr size_t kMaxCompiled = 256;

/// Where libgomp cannot start its threads it ends the process. So each thread that calls tries once
/// whether as many threads can run at the same time.
void try_threads(int count) {
  static thread_local int num_tried = 1;
  if (count <= num_tried) return;
  parallel_for_once(count, count, [](int64_t, int) {});
  num_tried = count;
}

// oneDNN 2.6 does not check its allocations: if there is no memory, it accesses a null pointer
// while it compiles. Such an access must not end the process, so it is caught and becomes an
// exception.

thread_local sigjmp_buf* on_null_access = nullptr;  // of a thread in survives()
struct sigaction previous_action;                   // of SIGSEGV, meanwhile

void handle_segv(int, siginfo_t* info, void*) {
  constexpr uintptr_t kNullPage = 4096;
  if (on_null_access != nullptr && reinterpret_cast<uintptr_t>(info->si_addr) < kNullPage)
    siglongjmp(*on_null_access, 1);
  // Another access or another thread: when this returns, the previous action handles it.
  ::sigaction(SIGSEGV, &previous_action, nullptr);
}

/// Makes calls of oneDNN. Returns false if one accessed a null pointer. It is not resumed then, and
/// what it allocated stays allocated.
bool survives(const std::function<void()>& calls) {
  static std::mutex mutex;  // of previous_action
  const std::lock_guard lock(mutex);
  struct sigaction action = {};
  action.sa_sigaction = handle_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &previous_action);
  struct Restore {
    ~Restore() {
      on_null_access = nullptr;
      ::sigaction(SIGSEGV, &previous_action, nullptr);
    }
  } const restore;
  sigjmp_buf here;
  if (sigsetjmp(here, /*savemask=*/1) != 0) return false;
  on_null_access = &here;
  calls();
  return true;
}

}  // namespace

bool OnednnMatmul::has_amx() {
  return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
}

OnednnMatmul::OnednnMatmul() {
  const int threads = omp_get_max_threads();
  const bool started = survives([this] {
    // The primitives are kept in `compiled_`. oneDNN's own cache would wait for ever for one whose
    // compilation did not end.
    dnnl::set_primitive_cache_capacity(0);
    engine_ = dnnl::engine(dnnl::engine::kind::cpu, 0);
    stream_ = dnnl::stream(engine_);
    // The first execution makes code that sets up the tile registers, in whichever thread comes
    // first, and does not check that either. So it is made here, by this thread.
    omp_set_num_threads(1);
    constexpr int64_t kSize = 32;
    std::vector<uint16_t> zeros(kSize * kSize), out(kSize * kSize);
    const GemmCall call{.x = zeros.data(),
                        .x_stride = kSize,
                        .panels = zeros.data(),
                        .out = out.data(),
                        .out_stride = kSize,
                        .n = kSize,
                        .k = kSize};
    Matmul matmul = compile(call, kSize);
    execute(matmul, call);
  });
  omp_set_num_threads(threads);
  require(started, "no memory is left to start oneDNN");
}

OnednnMatmul::Matmul OnednnMatmul::compile(const GemmCall& call, int64_t rows) const {
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
  const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
  const auto operand = [&](const memory::desc& desc) { return memory(desc, engine_, nullptr); };
  Matmul matmul{dnnl::matmul(description),
                {{DNNL_ARG_SRC, operand(x)},
                 {DNNL_ARG_WEIGHTS, operand(w)},
                 {DNNL_ARG_DST, operand(out)},
                 {DNNL_ARG_SCRATCHPAD, operand(description.scratchpad_desc())}}};
  if (call.bias) matmul.operands.insert({DNNL_ARG_BIAS, operand(bias)});
  return matmul;
}

void OnednnMatmul::run(const GemmCall& call, int64_t rows) {
  const Key key = {
      rows, call.n, call.k, call.x_stride, call.out_stride, call.out_f32, call.bias != nullptr};
  auto it = compiled_.find(key);
  if (it == compiled_.end()) {
    if (compiled_.size() == kMaxCompiled) compiled_.clear();
    std::optional<Matmul> compiled;
    require(survives([&] { compiled = compile(call, rows); }),
            "no memory is left to compile a GEMM of {} rows with oneDNN", rows);
    it = compiled_.emplace(key, std::move(*compiled)).first;
  }
  execute(it->second, call);
}

void OnednnMatmul::execute(Matmul& matmul, const GemmCall& call) {
  const auto set = [&](int operand, const void* data) {
    matmul.operands.at(operand).set_data_handle(const_cast<void*>(data));
  };
  set(DNNL_ARG_SRC, call.x);
  set(DNNL_ARG_WEIGHTS, call.panels);
  set(DNNL_ARG_DST, call.out);
  set(DNNL_ARG_SCRATCHPAD,
      scratch_.reserve(matmul.operands.at(DNNL_ARG_SCRATCHPAD).get_desc().get_size()));
  if (call.bias) set(DNNL_ARG_BIAS, call.bias);
  try_threads(omp_get_max_threads());
  matmul.primitive.execute(stream_, matmul.operands);
  stream_.wait();
}

}  // namespace nanovllm::cpu
