#include "nanovllm/ops/cuda/gemm/cublaslt.h"

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
/// How many algorithms are measured for a shape.
constexpr int kMaxCandidates = 12;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

}  // namespace

struct CublasLtLibrary {
  SharedLibrary library{"libcublasLt.so.13", "nvidia/cu13/lib", "nvidia-cublas"};
#define FUNCTION(name) decltype(&cublasLt##name) name = library.find("cublasLt" #name)
  FUNCTION(Create);
  FUNCTION(Destroy);
  FUNCTION(Matmul);
  FUNCTION(MatmulDescCreate);
  FUNCTION(MatmulDescDestroy);
  FUNCTION(MatmulDescSetAttribute);
  FUNCTION(MatrixLayoutCreate);
  FUNCTION(MatrixLayoutDestroy);
  FUNCTION(MatmulPreferenceCreate);
  FUNCTION(MatmulPreferenceDestroy);
  FUNCTION(MatmulPreferenceSetAttribute);
  FUNCTION(MatmulAlgoGetHeuristic);
#undef FUNCTION
};

namespace {

void lt_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed with status {}", what,
        static_cast<int>(status));
}

}  // namespace

struct CublasLt::Plan {
  cublasLtMatmulAlgo_t algo;
  int64_t num_tokens = 0;  // with which it was measured; 0: it was not
};

/// One GEMM in cuBLASLt's terms: column-major, out^T [n, T] = w^T x^T.
struct CublasLt::Problem {
  Problem(const CublasLtLibrary& l, const Tensor& out_, const Tensor& x_, const Tensor& w_)
      : lib(l), out(out_), x(x_), w(w_) {
    lt_check(lib.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    lt_check(lib.MatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof transposed),
             "attribute");
    const auto layout = [&](const Tensor& t) {
      cublasLtMatrixLayout_t made = nullptr;
      lt_check(lib.MatrixLayoutCreate(&made, data_type(t.dtype), static_cast<uint64_t>(t.shape[1]),
                                      static_cast<uint64_t>(t.shape[0]), t.row_stride),
               "layout");
      return made;
    };
    layouts = {layout(w), layout(x), layout(out)};
  }
  ~Problem() {
    for (cublasLtMatrixLayout_t layout : layouts) lib.MatrixLayoutDestroy(layout);
    lib.MatmulDescDestroy(desc);
  }
  Problem(const Problem&) = delete;

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, void* workspace,
                     cudaStream_t stream, void* to, float keep = 0) const {
    const float one = 1;
    return lib.Matmul(handle, desc, &one, w.data, layouts[0], x.data, layouts[1], &keep, to,
                      layouts[2], to, layouts[2], &algo, workspace, kWorkspaceBytes, stream);
  }

  const CublasLtLibrary& lib;
  Tensor out, x, w;
  cublasLtMatmulDesc_t desc = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts = {};
};

CublasLt::CublasLt(Launch where, Autotuner& autotuner)
    : where_(where), autotuner_(autotuner), lib_(std::make_unique<CublasLtLibrary>()) {
  lt_check(lib_->Create(&handle_), "start");
  cuda_check(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace");
}

CublasLt::~CublasLt() {
  cudaFree(workspace_);
  lib_->Destroy(handle_);
}

CublasLt::Plan CublasLt::choose(const Problem& problem, bool measure, void* to) {
  cublasLtMatmulPreference_t preference = nullptr;
  lt_check(lib_->MatmulPreferenceCreate(&preference), "preference");
  lt_check(lib_->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kWorkspaceBytes, sizeof kWorkspaceBytes),
           "preference");
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> found{};
  int count = 0;
  const cublasStatus_t status = lib_->MatmulAlgoGetHeuristic(
      handle_, problem.desc, problem.layouts[0], problem.layouts[1], problem.layouts[2],
      problem.layouts[2], preference, measure ? kMaxCandidates : 1, found.data(), &count);
  lib_->MatmulPreferenceDestroy(preference);
  lt_check(status, "choice of an algorithm");
  check(count > 0, "cuBLASLt has no algorithm for [{}, {}] x [{}, {}]", problem.x.shape[0],
        problem.x.shape[1], problem.w.shape[0], problem.w.shape[1]);
  Plan plan = {found[0].algo, measure ? problem.x.shape[0] : 0};
  if (!measure || count == 1) return plan;

  const auto run = [&](int i) {
    return problem.run(handle_, found[static_cast<size_t>(i)].algo, workspace_, where_.stream, to);
  };
  // The first run is not measured, because it loads the kernel's code.
  std::vector<int> working;
  for (int i = 0; i < count; ++i)
    if (run(i) == CUBLAS_STATUS_SUCCESS) working.push_back(i);
  if (working.empty()) return plan;
  const int best = autotuner_.measure(static_cast<int>(working.size()), problem.x.shape[0],
                                      [&](int i) { run(working[static_cast<size_t>(i)]); });
  plan.algo = found[static_cast<size_t>(working[static_cast<size_t>(best)])].algo;
  return plan;
}

void CublasLt::run(Tensor out, Tensor x, Tensor w, Tensor scratch) {
  check(out.shape[0] == x.shape[0] && x.shape[1] == w.shape[1] && out.shape[1] == w.shape[0] &&
            x.dtype == w.dtype,
        "matmul: [{}, {}] = [{}, {}] x [{}, {}]", out.shape[0], out.shape[1], x.shape[0],
        x.shape[1], w.shape[0], w.shape[1]);
  const int64_t num_tokens = x.shape[0];
  if (num_tokens < 2 * kPieceTokens) return run_whole(out, x, w, scratch);
  const auto in_pieces = [&](Tensor to, Tensor over) {
    for (int64_t first = 0; first < num_tokens; first += kPieceTokens) {
      const int64_t count = std::min(kPieceTokens, num_tokens - first);
      run_whole(to.rows(first, count), x.rows(first, count), w,
                over ? over.rows(first, count) : over);
    }
  };
  const int best = autotuner_.choose(kPieces, out, x, w, 2, [&](int i) {
    const Tensor to = scratch ? scratch : out;
    if (i == 1) in_pieces(to, {});
    else run_whole(to, x, w, {});
  });
  if (best == 1) in_pieces(out, scratch);
  else run_whole(out, x, w, scratch);
}

void CublasLt::run_whole(Tensor out, Tensor x, Tensor w, Tensor scratch) {
  const Problem problem(*lib_, out, x, w);
  const Autotuner::Key key = Autotuner::key(kAlgorithm, out, x, w);
  void* const measured = scratch ? scratch.data : out.data;
  const float keep = scratch ? 1 : 0;
  auto at = plans_.find(key);
  const bool is_known = at != plans_.end();
  if (!is_known || is_stale(at->second.num_tokens, x.shape[0])) {
    const bool may_measure = !autotuner_.is_capturing();
    if (!is_known || may_measure)
      at = plans_.insert_or_assign(key, choose(problem, may_measure, measured)).first;
  }
  const auto run = [&](const Plan& plan) {
    return problem.run(handle_, plan.algo, workspace_, where_.stream, out.data, keep);
  };
  if (run(at->second) == CUBLAS_STATUS_SUCCESS) return;
  // The algorithm computes other T of the bucket but not this one.
  lt_check(run(choose(problem, false, measured)), "GEMM");
}

}  // namespace nanovllm::cuda
