#pragma once

/// Bytes per second that the GPU's memory moves (medians): read and written by a copy, and read by
/// a kernel that writes nothing.
struct MemoryPeaks {
  double copy = 0, read = 0;
};
MemoryPeaks measure_memory();
