#include "nanovllm/ops/cuda/gemm/cublaslt.h"

#include <array>
#include <bit>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/device/libraries.h"
#include "nanovllm/ops/cuda/tuning/shape_bucket.h"

namespace nanovllm::cuda {

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
/// How many of the heuristic's algorithms are candidates. Up to kMostTokensOfFewCandidates tokens
/// its first one takes 1.6% longer than the best of eight, on average over 13 models on an H200,
/// and the best of two 0.7%; with more tokens 4% and 3%. Loading the code of an algorithm takes
/// some milliseconds.
constexpr int kCandidates = 2, kManyCandidates = 4;
constexpr int64_t kMostTokensOfFewCandidates = 1024;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kF32    ? CUDA_R_32F
         : dtype == DType::kBF16 ? CUDA_R_16BF
         : dtype == DType::kE4M3 ? CUDA_R_8F_E4M3
                                 : CUDA_R_16F;
}

cublasLtMatmulMatrixScale_t scale_mode(E4M3Scales::Kind kind) {
  return kind == E4M3Scales::kRows     ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
         : kind == E4M3Scales::kChunks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                       : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

}  // namespace

struct CublasLtLibrary {
  SharedLibrary library{"libcublasLt.so.13", "nvidia/cu13/lib", "nvidia-cublas"};
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member cannot have them
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
  FUNCTION(GetVersion);
#undef FUNCTION
};

namespace {

void lt_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed with status {}", what,
        static_cast<int>(status));
}

}  // namespace

/// One GEMM in cuBLASLt's terms: column-major, out^T [n, T] = w^T x^T.
struct CublasLt::Problem {
  Problem(const CublasLtLibrary& l, const Tensor& out_, const Tensor& x_, const Tensor& w_,
          const E4M3Scales& scales = {})
      : lib(l), out(out_), x(x_), w(w_) {
    check(out.shape[0] == x.shape[0] && x.shape[1] == w.shape[1] && out.shape[1] == w.shape[0] &&
              x.dtype == w.dtype,
          "matmul: [{}, {}] = [{}, {}] x [{}, {}]", out.shape[0], out.shape[1], x.shape[0],
          x.shape[1], w.shape[0], w.shape[1]);
    lt_check(lib.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      lt_check(lib.MatmulDescSetAttribute(desc, attribute, &value, sizeof value), "attribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (scales.w != nullptr) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(scales.w_kind));
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.w);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(scales.x_kind));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
    }
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
                     cudaStream_t stream, bool adds) const {
    const float one = 1, keep = adds ? 1 : 0;
    return lib.Matmul(handle, desc, &one, w.data, layouts[0], x.data, layouts[1], &keep, out.data,
                      layouts[2], out.data, layouts[2], &algo, workspace, kWorkspaceBytes, stream);
  }

  const CublasLtLibrary& lib;
  Tensor out, x, w;
  cublasLtMatmulDesc_t desc = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts = {};
};

CublasLt::CublasLt(Launch where) : where_(where), lib_(std::make_unique<CublasLtLibrary>()) {
  lt_check(lib_->Create(&handle_), "start");
  cuda_check(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace");
}

CublasLt::~CublasLt() {
  cudaFree(workspace_);
  lib_->Destroy(handle_);
}

uint64_t CublasLt::version() const { return lib_->GetVersion(); }

std::vector<GemmChoice> CublasLt::heuristic(const Problem& problem, int count) {
  cublasLtMatmulPreference_t preference = nullptr;
  lt_check(lib_->MatmulPreferenceCreate(&preference), "preference");
  lt_check(lib_->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kWorkspaceBytes, sizeof kWorkspaceBytes),
           "preference");
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  const cublasStatus_t status = lib_->MatmulAlgoGetHeuristic(
      handle_, problem.desc, problem.layouts[0], problem.layouts[1], problem.layouts[2],
      problem.layouts[2], preference, count, found.data(), &count);
  lib_->MatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;
  std::vector<GemmChoice> choices;
  for (int i = 0; i < count; ++i)
    choices.push_back(
        {.algorithm = std::bit_cast<std::array<uint64_t, 8>>(found[static_cast<size_t>(i)].algo)});
  return choices;
}

std::vector<GemmChoice> CublasLt::candidates(Tensor out, Tensor x, Tensor w) {
  const int64_t num_tokens = x.shape[0];
  const Problem problem(*lib_, out, x, w);
  std::vector<GemmChoice> all =
      heuristic(problem, num_tokens > kMostTokensOfFewCandidates ? kManyCandidates : kCandidates);
  check(!all.empty(), "cuBLASLt has no algorithm for [{}, {}] x [{}, {}]", num_tokens, x.shape[1],
        w.shape[0], w.shape[1]);
  if (num_tokens < 2 * kPieceTokens) return all;
  const Problem piece(*lib_, out.rows(0, kPieceTokens), x.rows(0, kPieceTokens), w);
  for (GemmChoice choice : heuristic(piece, 1)) {
    choice.in_pieces = true;
    all.push_back(choice);
  }
  return all;
}

std::vector<GemmChoice> CublasLt::candidates(Tensor out, Tensor x, Tensor w,
                                             const E4M3Scales& scales) {
  return heuristic(Problem(*lib_, out, x, w, scales), kManyCandidates);
}

void CublasLt::run(GemmChoice& choice, Tensor out, Tensor x, Tensor w, bool adds) {
  const int64_t num_tokens = x.shape[0];
  for (int64_t first = 0, count = 0; first < num_tokens; first += count) {
    count = num_tokens - first;
    // The last piece has half as many tokens as the others or more, because a few tokens take
    // nearly as long.
    if (choice.in_pieces && count >= kPieceTokens + kPieceTokens / 2) count = kPieceTokens;
    run_whole(choice, Problem(*lib_, out.rows(first, count), x.rows(first, count), w), adds);
  }
}

void CublasLt::run(GemmChoice& choice, Tensor out, Tensor x, Tensor w, const E4M3Scales& scales,
                   bool adds) {
  run_whole(choice, Problem(*lib_, out, x, w, scales), adds);
}

void CublasLt::run_whole(GemmChoice& choice, const Problem& problem, bool adds) {
  const auto run = [&] {
    return problem.run(handle_, std::bit_cast<cublasLtMatmulAlgo_t>(choice.algorithm), workspace_,
                       where_.stream, adds);
  };
  if (run() == CUBLAS_STATUS_SUCCESS) return;
  const std::vector<GemmChoice> others = heuristic(problem, 1);
  if (!others.empty()) choice.algorithm = others.front().algorithm;
  lt_check(run(), "GEMM");
}

}  // namespace nanovllm::cuda
