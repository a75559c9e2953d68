#pragma once

/// Bytes a second that the GPU's memory moves: read and written by a copy, read by a kernel that
/// writes nothing. Medians.
struct MemoryPeaks {
  double copy = 0, read = 0;
};
MemoryPeaks measure_memory();
