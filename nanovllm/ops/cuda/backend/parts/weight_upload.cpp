#include "nanovllm/ops/cuda/backend/parts/weight_upload.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/system/machine.h"
#include "nanovllm/base/system/threads.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

namespace {

/// The matrices of a small model have a few megabytes; with pieces of 1 MiB all lanes have work.
constexpr size_t kPieceBytes = size_t{1} << 20;
/// One thread reads about 8 GB/s from the page cache, and the bus transfers about 50 GB/s.
constexpr int kMaxLanes = 8;

}  // namespace

WeightUpload::WeightUpload(std::function<void()> progress)
    : progress_(std::move(progress)),
      lanes_(static_cast<size_t>(std::min(num_usable_cpus(), kMaxLanes))) {
  cuda_check(cudaGetDevice(&device_), "device");
  for (Lane& lane : lanes_) {
    cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& event : lane.sent)
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  grow(kPieceBytes);
  try {
    for (Lane& lane : lanes_)
      threads_.push_back(
          start_thread("a thread that loads weights", [this, &lane] { serve(lane); }));
  } catch (...) {
    stop();
    throw;
  }
}

void WeightUpload::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  threads_.clear();  // joins the threads
}

WeightUpload::~WeightUpload() {
  stop();
  for (Lane& lane : lanes_) {
    for (char* piece : lane.pieces) cudaFreeHost(piece);
    for (cudaEvent_t event : lane.sent) cudaEventDestroy(event);
    cudaStreamDestroy(lane.stream);
  }
}

void WeightUpload::grow(size_t row_bytes) {
  if (row_bytes <= piece_bytes_) return;
  if (piece_bytes_ > 0) finish();
  piece_bytes_ = row_bytes;
  for (Lane& lane : lanes_)
    for (char*& piece : lane.pieces) {
      cudaFreeHost(std::exchange(piece, nullptr));
      cuda_check(cudaMallocHost(reinterpret_cast<void**>(&piece), piece_bytes_), "pinned memory");
    }
}

void WeightUpload::copy(std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    const WeightRows& from = copy.from;
    if (from.num_rows() == 0 || from.num_columns() == 0) continue;
    grow(from.row_bytes());
    const auto shared = std::make_shared<const Copy>(copy);
    const auto count = static_cast<int64_t>(piece_bytes_ / from.row_bytes());
    const std::lock_guard lock(mutex_);
    for (int64_t first = 0; first < from.num_rows(); first += count)
      tasks_.push_back({shared, first, std::min(count, from.num_rows() - first)});
    wake_.notify_all();
  }
  std::unique_lock lock(mutex_);
  if (error_) wait(lock);
}

void WeightUpload::finish() {
  std::unique_lock lock(mutex_);
  wait(lock);
  for (const Lane& lane : lanes_) cuda_check(cudaStreamSynchronize(lane.stream), "weights");
}

void WeightUpload::wait(std::unique_lock<std::mutex>& lock) {
  done_.wait(lock, [&] { return tasks_.empty() && num_busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void WeightUpload::serve(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++num_busy_;
    lock.unlock();
    std::exception_ptr error;
    try {
      run(lane, task);
      progress_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --num_busy_;
    if (error) {
      error_ = error;
      tasks_.clear();
    }
    if (tasks_.empty()) done_.notify_all();
  }
}

void WeightUpload::run(Lane& lane, const Task& task) {
  cuda_check(cudaSetDevice(device_), "device");
  const auto turn = static_cast<size_t>(std::exchange(lane.turn, 1 - lane.turn));
  cuda_check(cudaEventSynchronize(lane.sent[turn]), "weights");
  task.copy->from.read(task.first, task.count, lane.pieces[turn]);
  const size_t row_bytes = task.copy->from.row_bytes();
  cuda_check(cudaMemcpyAsync(
                 static_cast<char*>(task.copy->to) + static_cast<size_t>(task.first) * row_bytes,
                 lane.pieces[turn], static_cast<size_t>(task.count) * row_bytes,
                 cudaMemcpyHostToDevice, lane.stream),
             "weights");
  cuda_check(cudaEventRecord(lane.sent[turn], lane.stream), "weights");
}

}  // namespace nanovllm::cuda
