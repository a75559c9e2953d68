#include "nanovllm/ops/cuda/gemm/cublaslt_gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/device/libraries.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/shape_bucket.h"

namespace nanovllm::cuda {

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
/// Algorithms measured for a shape.
constexpr int kMaxCandidates = 12;
/// Larger than the L2: written between measured products, so that each reads its weights from the
/// memory, as in a step, and its launches are there before their turn.
constexpr size_t kFlushBytes = size_t{128} << 20;
/// Of the kernel before: what a product can do ahead of its end counts for it.
constexpr int64_t kBeforeCycles = 6000;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

}  // namespace

struct CublasLt {
  SharedLibrary library{"libcublasLt.so.13", "nvidia/cu13/lib", "nvidia-cublas"};
  decltype(&cublasLtCreate) create = library.find("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy = library.find("cublasLtDestroy");
  decltype(&cublasLtMatmul) matmul = library.find("cublasLtMatmul");
  decltype(&cublasLtMatmulDescCreate) matmulDescCreate = library.find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) matmulDescDestroy =
      library.find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) matmulDescSetAttribute =
      library.find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) matrixLayoutCreate =
      library.find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) matrixLayoutDestroy =
      library.find("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatmulPreferenceCreate) matmulPreferenceCreate =
      library.find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) matmulPreferenceDestroy =
      library.find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmulPreferenceSetAttribute =
      library.find("cublasLtMatmulPreferenceSetAttribute");
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmulAlgoGetHeuristic =
      library.find("cublasLtMatmulAlgoGetHeuristic");
};

namespace {

void lt_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed with status {}", what,
        static_cast<int>(status));
}

}  // namespace

struct CublasLtGemm::Plan {
  cublasLtMatmulAlgo_t algo;
  int64_t num_tokens = 0;  // that it was measured with
};

/// One product in cuBLASLt's terms: column-major, out^T [n, T] = w^T x^T.
struct CublasLtGemm::Problem {
  Problem(const CublasLt& l, const Tensor& out_, const Tensor& x_, const DeviceWeight& w_)
      : lib(l), out(out_), x(x_), w(w_.matrix) {
    lt_check(lib.matmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    lt_check(lib.matmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof transposed),
             "attribute");
    const auto layout = [&](const Tensor& t) {
      cublasLtMatrixLayout_t made = nullptr;
      lt_check(lib.matrixLayoutCreate(&made, data_type(t.dtype), static_cast<uint64_t>(t.shape[1]),
                                      static_cast<uint64_t>(t.shape[0]), t.row_stride),
               "layout");
      return made;
    };
    layouts = {layout(w), layout(x), layout(out)};
  }
  ~Problem() {
    for (cublasLtMatrixLayout_t layout : layouts) lib.matrixLayoutDestroy(layout);
    lib.matmulDescDestroy(desc);
  }
  Problem(const Problem&) = delete;

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, void* workspace,
                     cudaStream_t stream, void* to, float keep = 0) const {
    const float one = 1;
    return lib.matmul(handle, desc, &one, w.data, layouts[0], x.data, layouts[1], &keep, to,
                      layouts[2], to, layouts[2], &algo, workspace, kWorkspaceBytes, stream);
  }

  const CublasLt& lib;
  Tensor out, x, w;
  cublasLtMatmulDesc_t desc = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts = {};
};

CublasLtGemm::CublasLtGemm(Launch where, std::function<void(cudaEvent_t)> wait)
    : where_(where), wait_(std::move(wait)), lib_(std::make_unique<CublasLt>()) {
  lt_check(lib_->create(&handle_), "start");
  cuda_check(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace");
  cuda_check(cudaMalloc(&flush_, kFlushBytes), "workspace");
  for (cudaEvent_t& event : events_) cuda_check(cudaEventCreate(&event), "event");
}

CublasLtGemm::~CublasLtGemm() {
  cudaFree(workspace_);
  cudaFree(flush_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  lib_->destroy(handle_);
}

CublasLtGemm::Plan CublasLtGemm::choose(const Problem& problem, bool measure, void* to) {
  cublasLtMatmulPreference_t preference = nullptr;
  lt_check(lib_->matmulPreferenceCreate(&preference), "preference");
  lt_check(lib_->matmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kWorkspaceBytes, sizeof kWorkspaceBytes),
           "preference");
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> found{};
  int count = 0;
  const cublasStatus_t status = lib_->matmulAlgoGetHeuristic(
      handle_, problem.desc, problem.layouts[0], problem.layouts[1], problem.layouts[2],
      problem.layouts[2], preference, measure ? kMaxCandidates : 1, found.data(), &count);
  lib_->matmulPreferenceDestroy(preference);
  lt_check(status, "choice of an algorithm");
  check(count > 0, "cuBLASLt has no algorithm for [{}, {}] x [{}, {}]", problem.x.shape[0],
        problem.x.shape[1], problem.w.shape[0], problem.w.shape[1]);
  Plan plan = {found[0].algo, measure ? problem.x.shape[0] : 0};
  if (!measure || count == 1) return plan;

  const auto run = [&](int i) {
    return problem.run(handle_, found[static_cast<size_t>(i)].algo, workspace_, where_.stream, to);
  };
  // Once unmeasured: its code is loaded then.
  std::vector<int> serving;
  for (int i = 0; i < count; ++i)
    if (run(i) == CUBLAS_STATUS_SUCCESS) serving.push_back(i);
  if (serving.empty()) return plan;
  const auto best = race(static_cast<int>(serving.size()), problem.x.shape[0],
                         [&](int i) { run(serving[static_cast<size_t>(i)]); });
  plan.algo = found[static_cast<size_t>(serving[static_cast<size_t>(best)])].algo;
  return plan;
}

double CublasLtGemm::timed(int num_runs, const std::function<void()>& enqueue) {
  double sum = 0;
  for (int run = 0; run < num_runs; ++run) {
    cuda_check(cudaMemsetAsync(flush_, run, kFlushBytes, where_.stream), "flush");
    cuda_check(cudaEventRecord(events_[0], where_.stream), "event");
    idle(where_, kBeforeCycles);
    enqueue();
    idle(where_, 0);
    cuda_check(cudaEventRecord(events_[1], where_.stream), "event");
    wait_(events_[1]);  // behind another rank's sums, perhaps, and that rank may die
    float time = 0;
    cuda_check(cudaEventElapsedTime(&time, events_[0], events_[1]), "event");
    sum += time;
  }
  return sum;
}

void CublasLtGemm::run(Tensor out, Tensor x, const DeviceWeight& w, bool capturing,
                       Tensor scratch) {
  check(out.shape[0] == x.shape[0] && x.shape[1] == w.matrix.shape[1] &&
            out.shape[1] == w.matrix.shape[0] && x.dtype == w.matrix.dtype,
        "matmul: [{}, {}] = [{}, {}] x [{}, {}]", out.shape[0], out.shape[1], x.shape[0],
        x.shape[1], w.matrix.shape[0], w.matrix.shape[1]);
  const int64_t num_tokens = x.shape[0];
  if (num_tokens < 2 * kPieceTokens) return run_whole(out, x, w, capturing, scratch);
  const auto in_pieces = [&](Tensor to, Tensor over) {
    for (int64_t first = 0; first < num_tokens; first += kPieceTokens) {
      const int64_t count = std::min(kPieceTokens, num_tokens - first);
      run_whole(to.rows(first, count), x.rows(first, count), w, capturing,
                over ? over.rows(first, count) : over);
    }
  };
  const int way = fastest(kPieces, out, x, w.matrix, 2, capturing, [&](int i) {
    const Tensor to = scratch ? scratch : out;
    if (i == 1) in_pieces(to, {});
    else run_whole(to, x, w, capturing, {});
  });
  if (way == 1) in_pieces(out, scratch);
  else run_whole(out, x, w, capturing, scratch);
}

CublasLtGemm::Key CublasLtGemm::key(Tensor out, Tensor x, Tensor w) {
  return {largest_like(x.shape[0]), w.shape[0], w.shape[1], x.dtype, out.dtype};
}

int CublasLtGemm::fastest(int choice, Tensor out, Tensor x, Tensor w, int num_ways, bool capturing,
                          const std::function<void(int)>& run) {
  Way& known = ways_[{choice, key(out, x, w)}];
  if (capturing || !is_stale(known.num_tokens, x.shape[0])) return known.way;
  for (int way = 0; way < num_ways; ++way) run(way);  // loads its code, chooses its algorithms
  known = {race(num_ways, x.shape[0], run), x.shape[0]};
  return known.way;
}

int CublasLtGemm::race(int num_ways, int64_t num_tokens, const std::function<void(int)>& run) {
  // In turns, since a GPU that has long been busy computes slower. A single run or two of all, then
  // more of those that may yet win.
  constexpr double kHopeless = 1.25;
  const int num_runs = num_tokens > 1024 ? 1 : 3;
  std::vector<double> first(static_cast<size_t>(num_ways), INFINITY), least = first;
  for (int round = 0; round < (num_tokens > 1024 ? 1 : 2); ++round)
    for (size_t way = 0; way < first.size(); ++way)
      first[way] = std::min(first[way], timed(1, [&] { run(static_cast<int>(way)); }));
  const double best = *std::ranges::min_element(first);
  for (int round = 0; round < 2; ++round)
    for (size_t way = 0; way < first.size(); ++way)
      if (first[way] <= kHopeless * best)
        least[way] = std::min(least[way], timed(num_runs, [&] { run(static_cast<int>(way)); }));
  return static_cast<int>(std::ranges::min_element(least) - least.begin());
}

void CublasLtGemm::run_whole(Tensor out, Tensor x, const DeviceWeight& w, bool capturing,
                             Tensor scratch) {
  const Problem problem(*lib_, out, x, w);
  const Key key = CublasLtGemm::key(out, x, w.matrix);
  void* const measured = scratch ? scratch.data : out.data;
  const float keep = scratch ? 1 : 0;
  auto at = plans_.find(key);
  if (at == plans_.end() || (!capturing && is_stale(at->second.num_tokens, x.shape[0])))
    at = plans_.insert_or_assign(key, choose(problem, !capturing, measured)).first;
  const auto run = [&](const Plan& plan) {
    return problem.run(handle_, plan.algo, workspace_, where_.stream, out.data, keep);
  };
  if (run(at->second) == CUBLAS_STATUS_SUCCESS) return;
  // An algorithm that serves the neighbours but not this T.
  lt_check(run(choose(problem, false, measured)), "product");
}

}  // namespace nanovllm::cuda
